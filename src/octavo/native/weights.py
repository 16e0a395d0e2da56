"""Packed weights: a checkpoint's matrices in the form that the kernels of this instruction set read, held once."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from octavo.models.checkpoint import Checkpoint, RawTensor
from octavo.native.library import KIND_NUMBERS, CPackArgs, CWeight, Library
from octavo.native.pool import Pool

PLAIN = ("F32", "F16", "BF16")
KEPT = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")  # multiplied as they are; every other type becomes bfloat16
ALIGNMENT = 4096
HUGE_PAGE = 2**21
VALUES_AT_ONCE = 2**16  # of a tensor that is widened: what is made on the way stays in the cache
Bits = npt.NDArray[np.uint16]


def packed_kind(kind: str, widen: bool) -> str:
    """The element type that weights of a type in a file are held and multiplied in. ``widen``: bfloat16 for all."""
    return kind if kind in KEPT and not widen else "BF16"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights that are packed as one: rows of all tensors, one below the other. ``gated``: gate and up, interleaved."""

    names: tuple[str, ...]
    gated: bool = False


class PackedWeights:
    """Packs every matrix that is asked for, on the threads of ``pool``, with a progress bar where stderr is a terminal.

    bytes: memory that they take.
    kinds: how many matrices there are of each type, and how many tensors were widened from which: for the line at start.
    """

    def __init__(
        self,
        library: Library,
        pool: Pool,
        checkpoint: Checkpoint,
        matrices: Iterable[Matrix],
        widen: bool = False,
        progress: bool | None = None,
    ):
        self._library, self._pool, self._checkpoint, self._widen = library, pool, checkpoint, widen
        wanted = list(dict.fromkeys(matrices))
        self._weights = {matrix: self._describe(matrix) for matrix in wanted}
        sizes = {matrix: library.weight_bytes(self._weights[matrix]) for matrix in wanted}
        self.bytes = sum(sizes.values())
        self._widened: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        places, total = {}, 0
        for matrix in wanted:
            places[matrix] = total
            total += -(-sizes[matrix] // ALIGNMENT) * ALIGNMENT
        # In one piece that begins at a huge page, so that reading the weights walks through few page tables.
        self._memory = mmap.mmap(-1, total + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        base = np.frombuffer(self._memory, np.uint8).ctypes.data
        base += -base % HUGE_PAGE
        shown = sys.stderr.isatty()
        with tqdm(total=self.bytes, desc="Loading weights", unit="B", unit_scale=True, disable=not shown, leave=False) as bar:
            for matrix in wanted:
                self._pack(matrix, base + places[matrix])
                bar.update(sizes[matrix])
        checkpoint.drop_pages()

    def __getitem__(self, matrix: Matrix) -> CWeight:
        """The packed matrix. It lives as long as this object."""
        return self._weights[matrix]

    def describe(self) -> str:
        """Their types and number, and what was widened, in words."""
        held = ", ".join(f"{count} {kind}" for kind, count in sorted(self._held.items()))
        widened = ", ".join(f"{count} {kind}" for kind, count in sorted(self._widened.items()))
        return held + (f"; widened to BF16: {widened}" if widened else "")

    def _describe(self, matrix: Matrix) -> CWeight:
        raws = [self._checkpoint.tensor(name) for name in matrix.names]
        (kind,) = {packed_kind(raw.kind, self._widen) for raw in raws}
        k = raws[0].shape[1]
        padded = -(-k // 32) * 32
        return CWeight(KIND_NUMBERS[kind], matrix.gated, sum(raw.shape[0] for raw in raws), padded, None)

    def _pack(self, matrix: Matrix, address: int) -> None:
        raws = [self._checkpoint.tensor(name) for name in matrix.names]
        weight = self._weights[matrix]
        weight.data = address
        args = CPackArgs(weight=weight, segment_count=len(raws), source_k=raws[0].shape[1], data=address)
        sources = []
        for raw, segment in zip(raws, args.segments, strict=False):
            kind = packed_kind(raw.kind, self._widen)
            self._held[kind] += 1
            if kind != raw.kind and raw.kind not in PLAIN:
                self._widened[raw.kind] += 1
                rows, of = _widen(raw).view(np.uint8), "BF16"
            else:
                rows, of = raw.data, raw.kind
            rows = np.ascontiguousarray(rows)
            sources.append(rows)  # alive until it is packed
            segment.rows, segment.row_bytes = rows.ctypes.data, rows.strides[0]
            segment.n, segment.kind = raw.shape[0], KIND_NUMBERS[of]
        self._library.check(self._library.pool_pack(self._pool.handle, ctypes.byref(args)))


def _widen(raw: RawTensor) -> Bits:
    """The values rounded to bfloat16, as bits ``[rows, columns]``."""
    out = np.empty(raw.shape, np.uint16)
    rows = max(1, VALUES_AT_ONCE // raw.shape[1])
    for first in range(0, raw.shape[0], rows):
        data = raw.data[first : first + rows]
        bits = RawTensor(raw.kind, (data.shape[0], raw.shape[1]), data).to_float32().view(np.uint32)
        out[first : first + rows] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    return out


def stacked(checkpoint: Checkpoint, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """One-dimensional weights one after the other, in float32 of their own memory."""
    return np.concatenate([checkpoint.tensor(name).to_float32() for name in names]).astype(np.float32)
