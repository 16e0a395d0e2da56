"""The header of a GGUF file (versions 2 and 3, little-endian): its metadata, and where its tensors lie.

The format is specified in ggml's ``docs/gguf.md``. Nothing that a header says is believed before it has been compared with the
size of the file.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.models.kinds import BLOCKS
from octavo.models.mapped import map_file, tensor_bytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Far above any real model, low enough that a corrupt count costs neither memory nor time.
MAX_ENTRIES = 2**17
MAX_ARRAY = 2**23
MAX_STRING = 2**24

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
KINDS = {0: "F32", 1: "F16", 30: "BF16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K"}
KINDS |= {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """kind: a key of ``BLOCKS``; shape: rows first (the file has it the other way round); offset: bytes from the file's start."""

    kind: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """``metadata`` holds Python values; arrays are lists of strings or tuples of numbers. ``memory`` is the file itself."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    memory: mmap.mmap


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header. Raises ModelError where the file is not GGUF, truncated, or holds what octavo cannot read."""
    memory = map_file(path)
    reader = _Reader(path, memory)
    tensor_count, metadata_count = reader.start()
    metadata = reader.metadata(metadata_count)
    tensors = reader.tensors(tensor_count, reader.alignment(metadata))
    return GGUFHeader(metadata, tensors, memory)


class _Reader:
    """A position in the file; every method reads on from there and checks before it does."""

    def __init__(self, path: Path, memory: mmap.mmap):
        self.path = path
        self.memory = memory
        self.size = len(memory)
        self.at = 0

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.path} {what}")

    def need(self, count: int, what: str) -> None:
        """Raise unless ``count`` more bytes follow."""
        if count > self.size - self.at:
            raise self.error(f"is truncated or corrupt: {what} ends beyond the end of the file ({self.size} bytes).")

    def scalar(self, code: str, what: str) -> Any:
        width = struct.calcsize("<" + code)
        self.need(width, what)
        value = struct.unpack_from("<" + code, self.memory, self.at)[0]
        self.at += width
        return value

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        # A vocabulary and its merges are 100 000 strings: this loop is the cost of opening a file.
        memory, at, size = self.memory, self.at, self.size
        from_bytes = int.from_bytes
        found = []
        for _ in range(count):
            begin = at + 8
            length = from_bytes(memory[at:begin], "little")
            at = begin + length
            if at > size or length > MAX_STRING:
                self.need(length + 8, what)  # the more exact message where it applies
                raise self.error(f"is truncated or corrupt: {what} is a string of {length} bytes that does not fit.")
            found.append(memory[begin:at])
        self.at = at
        try:
            return [text.decode() for text in found]
        except UnicodeDecodeError:
            raise self.error(f"is corrupt: {what} is not valid UTF-8.") from None

    def start(self) -> tuple[int, int]:
        """Numbers of tensors and of metadata entries."""
        if self.memory[:4] != MAGIC:
            raise self.error(f"is not a GGUF file: it begins with {self.memory[:4]!r} where {MAGIC!r} is expected.")
        self.at = 4
        version = self.scalar("I", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = "big-endian, which is not supported; " if swapped in VERSIONS else ""
            raise self.error(
                f"is {order}GGUF version {swapped if order else version}: little-endian versions 2 and 3 are accepted."
            )
        tensors, entries = self.scalar("Q", "the tensor count"), self.scalar("Q", "the metadata count")
        for count, what in ((tensors, "tensors"), (entries, "metadata entries")):
            if count > min(MAX_ENTRIES, self.size // 12):  # the shortest entry of either kind has more bytes
                raise self.error(f"is corrupt: it states {count} {what}.")
        return tensors, entries

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for i in range(count):
            key = self.string(f"the name of metadata entry {i}")
            if key in found:
                raise self.error(f"is corrupt: metadata {key!r} appears twice.")
            found[key] = self.value(self.scalar("I", f"metadata {key!r}"), f"metadata {key!r}")
        return found

    def value(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what)
        if kind not in SCALARS:
            raise self.error(f"is corrupt: {what} has the value type {kind}, which GGUF does not know.")
        return self.scalar(SCALARS[kind], what)

    def array(self, what: str) -> list[str] | tuple[Any, ...]:
        kind, count = self.scalar("I", what), self.scalar("Q", what)
        if kind != STRING and kind not in SCALARS:
            raise self.error(f"is corrupt: {what} is an array of value type {kind}; strings and numbers are accepted.")
        width = 8 if kind == STRING else struct.calcsize("<" + SCALARS[kind])
        self.need(count * width, what)
        if count > MAX_ARRAY:
            raise self.error(f"is corrupt: {what} states {count} elements; at most {MAX_ARRAY} are accepted.")
        if kind == STRING:
            return self.strings(count, what)
        values = struct.unpack_from(f"<{count}{SCALARS[kind]}", self.memory, self.at)
        self.at += count * width
        return values

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 2**20 or alignment & (alignment - 1):
            raise self.error(f"states general.alignment {alignment!r}: a power of two from 8 to {2**20} is accepted.")
        return alignment

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        listed: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for i in range(count):
            name = self.string(f"the name of tensor {i}")
            if name in listed:
                raise self.error(f"is corrupt: tensor {name!r} appears twice.")
            what = f"tensor {name!r}"
            dimensions = self.scalar("I", what)
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise self.error(f"is corrupt: {what} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are accepted.")
            shape = tuple(self.scalar("Q", what) for _ in range(dimensions))[::-1]
            listed[name] = (self.scalar("I", what), shape, self.scalar("Q", what))
        start = -(-self.at // alignment) * alignment
        self.check_kinds({name: kind for name, (kind, _, _) in listed.items()})
        return {
            name: self.place(name, KINDS[kind], shape, offset, start, alignment) for name, (kind, shape, offset) in listed.items()
        }

    def check_kinds(self, kinds: dict[str, int]) -> None:
        refused = [name for name, kind in kinds.items() if kind not in KINDS]
        if refused:
            others = f" (and {len(refused) - 1} more tensors of unsupported types)" if len(refused) > 1 else ""
            raise self.error(
                f"holds tensor {refused[0]!r} of type {_kind_name(kinds[refused[0]])}{others}: "
                f"the types {', '.join(KINDS.values())} are accepted."
            )

    def place(self, name: str, kind: str, shape: tuple[int, ...], offset: int, start: int, alignment: int) -> TensorInfo:
        what = f"is truncated or corrupt: tensor {name!r}"
        block = BLOCKS[kind][0]
        if 0 in shape or shape[-1] % block:
            raise self.error(f"{what} of type {kind} has shape {shape}: rows of a positive multiple of {block} are accepted.")
        if offset % alignment:
            raise self.error(f"{what} begins at byte {offset} of the data, which is no multiple of {alignment}.")
        end = start + offset + tensor_bytes(kind, shape)
        if end > self.size:
            raise self.error(f"{what} ends at byte {end}, beyond the end of the file ({self.size} bytes).")
        return TensorInfo(kind, shape, start + offset)


def _kind_name(kind: int) -> str:
    import gguf  # only to say it in words

    try:
        return str(gguf.GGMLQuantizationType(kind).name)
    except ValueError:
        return f"number {kind}, which GGML does not know"
