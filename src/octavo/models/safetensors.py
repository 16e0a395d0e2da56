"""HFCheckpoint: a model in a folder as Hugging Face publishes it, with its weights in safetensors files."""

from __future__ import annotations

import json
import mmap
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.models import names
from octavo.models.chat import ChatTemplate
from octavo.models.checkpoint import Checkpoint, RawTensor
from octavo.models.fields import Fields
from octavo.models.hf_config import read_config, read_json
from octavo.models.kinds import DTYPES, common_dtype
from octavo.models.mapped import map_file, tensor_bytes, tensor_view
from octavo.models.tokenizer import Tokenizer, read_tokenizer
from octavo.models.weights import check_config, check_rope, match_weights

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # bytes; the safetensors library's own limit
WEIGHTS = {names.EMBED: "model.embed_tokens.weight", names.FINAL_NORM: "model.norm.weight", names.HEAD: "lm_head.weight"}
LAYER_WEIGHTS = {
    names.ATTN_NORM: "input_layernorm.weight",
    names.Q: "self_attn.q_proj.weight",
    names.K: "self_attn.k_proj.weight",
    names.V: "self_attn.v_proj.weight",
    names.O: "self_attn.o_proj.weight",
    names.Q_BIAS: "self_attn.q_proj.bias",
    names.K_BIAS: "self_attn.k_proj.bias",
    names.V_BIAS: "self_attn.v_proj.bias",
    names.O_BIAS: "self_attn.o_proj.bias",
    names.MLP_NORM: "post_attention_layernorm.weight",
    names.GATE: "mlp.gate_proj.weight",
    names.UP: "mlp.up_proj.weight",
    names.DOWN: "mlp.down_proj.weight",
    names.GATE_BIAS: "mlp.gate_proj.bias",
    names.UP_BIAS: "mlp.up_proj.bias",
    names.DOWN_BIAS: "mlp.down_proj.bias",
}
SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class _Located:
    """dtype: as safetensors calls it; begin: bytes from the file's start."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    bytes: int


class HFCheckpoint(Checkpoint):
    """A folder with config.json, model.safetensors (or shards and their index) and tokenizer.json; model type ``llama``.

    Raises ModelError, before anything is served, where a file is missing or truncated, a weight is missing, or config.json asks
    for something that is not supported.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._folder = Path(path)
        generation = self._folder / "generation_config.json"
        self._generation = Fields(str(generation), read_json(generation) if generation.exists() else {})
        config, dtype = read_config(self._folder / "config.json", self._generation)
        self._tensors = _locate(self._folder)
        self.config = replace(config, dtype=dtype or common_dtype({t.dtype for t in self._tensors.values()} & DTYPES.keys()))
        check_config(self.path, self.config)
        shapes = {name: located.shape for name, located in self._tensors.items()}
        self._names = match_weights(self.path, self.config, shapes, _file_name, self._ignored)
        check_rope(self.path, self.config)
        for name in self._names.values():
            self._check(name)
        self._memory = {file: map_file(file) for file in {self._tensors[name].file for name in self._names.values()}}

    def _ignored(self, name: str) -> bool:
        """Whether a tensor that the program does not ask for may be there: a copy of a tied head, an old table of frequencies."""
        return (self.config.tied_head and name == WEIGHTS[names.HEAD]) or name.endswith(".rotary_emb.inv_freq")

    def _check(self, name: str) -> None:
        located = self._tensors[name]
        if located.dtype not in DTYPES:
            raise ModelError(f"{located.file}: tensor {name} has dtype {located.dtype}: {', '.join(DTYPES)} are accepted.")
        needed = tensor_bytes(located.dtype, located.shape)
        if located.bytes != needed:
            raise ModelError(f"{located.file} is corrupt: tensor {name} has {located.bytes} bytes where {needed} are needed.")

    def tensor(self, name: str) -> RawTensor:
        """The weight of this canonical name."""
        if name not in self._names:
            raise ModelError(f"{self.path} has no weight {name!r}.")
        located = self._tensors[self._names[name]]
        return tensor_view(self._memory[located.file], located.dtype, located.shape, located.begin)

    def weight_kinds(self) -> dict[str, int]:
        """How many tensors there are of each element type."""
        return dict(Counter(self._tensors[name].dtype for name in self._names.values()))

    def drop_pages(self) -> None:
        """Unmap the files' pages; they come back when touched."""
        for memory in self._memory.values():
            memory.madvise(mmap.MADV_DONTNEED)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of tokenizer.json."""
        bos = self._special_tokens.get("bos_token")
        return read_tokenizer(self._folder / "tokenizer.json", bos, self.config.bos_token_id, self.config.vocab)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """chat_template.jinja, or what tokenizer_config.json states."""
        file = self._folder / "chat_template.jinja"
        if not file.exists():
            template = _default_template(self._tokenizer_config)
            return None if template is None else ChatTemplate(template, self._special_tokens, self._tokenizer_config.where)
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {error}.") from None
        return ChatTemplate(source, self._special_tokens, str(file))

    @cached_property
    def _tokenizer_config(self) -> Fields:
        file = self._folder / "tokenizer_config.json"
        return Fields(str(file), read_json(file) if file.exists() else {})

    @property
    def _special_tokens(self) -> dict[str, str]:
        """The texts of special tokens, each stated as a string or as an object that holds it."""
        stated = {name: self._tokenizer_config.get(name) for name in SPECIAL_TOKENS}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in stated.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling part of generation_config.json, under its own names."""
        stated = {name: self._generation.get(name) for name in SAMPLING}
        return {name: value for name, value in stated.items() if value is not None}


def _file_name(name: str) -> str:
    """Hugging Face's name of a canonical weight."""
    if name in WEIGHTS:
        return WEIGHTS[name]
    _, index, part = name.split(".")
    return f"model.layers.{index}.{LAYER_WEIGHTS[part]}"


def _default_template(config: Fields) -> str | None:
    """``chat_template``: one template, or a list of named ones of which "default" is taken."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise config.refuse("chat_template", "a string, or a list of named ones,")
    return template


def _locate(folder: Path) -> dict[str, _Located]:
    """Every tensor of the folder, by Hugging Face's name."""
    if (folder / SINGLE).exists():
        return _read_header(folder / SINGLE)
    if not (folder / INDEX).exists():
        if any(folder.glob("*.bin")):
            raise ModelError(f"{folder} holds its weights as pickled .bin files: octavo needs them as safetensors ({SINGLE}).")
        raise ModelError(f"{folder} has no {SINGLE} and no {INDEX}.")
    placed = Fields(str(folder / INDEX), read_json(folder / INDEX)).table("weight_map")
    files = sorted({placed.text(name) for name in placed.values})
    found: dict[str, _Located] = {}
    for file in files:
        if Path(file).name != file or not (folder / file).is_file():
            raise ModelError(f"{folder / INDEX} names {file!r}, which is not a file of that folder.")
        tensors = _read_header(folder / file)
        found |= {name: located for name, located in tensors.items() if placed.get(name) == file}
    lost = [name for name in placed.values if name not in found]
    if lost:
        raise ModelError(f"{folder / placed.text(lost[0])} lacks tensor {lost[0]}, which {INDEX} promises.")
    return found


def _read_header(file: Path) -> dict[str, _Located]:
    """One file: 8 bytes of header length, the header as JSON, the data."""
    memory = map_file(file)
    length = int.from_bytes(memory[:8], "little")
    if len(memory) < 8 or length > len(memory) - 8 or length > MAX_HEADER:
        raise ModelError(f"{file} is truncated or no safetensors file: its header ends beyond the end of the file.")
    start = 8 + length
    try:
        header = json.loads(memory[8:start])
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is no safetensors file: its header is not valid JSON: {error}.") from None
    if not isinstance(header, dict):
        raise ModelError(f"{file} is no safetensors file: its header is no JSON object.")
    header.pop("__metadata__", None)
    return {name: _locate_tensor(file, name, entry, start, len(memory)) for name, entry in header.items()}


def _locate_tensor(file: Path, name: str, entry: Any, start: int, size: int) -> _Located:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
            if 0 <= begin <= end and all(type(n) is int and n > 0 for n in shape) and shape:
                if start + end > size:
                    raise ModelError(f"{file} is truncated: tensor {name} ends at byte {start + end} of {size}.")
                return _Located(file, dtype, tuple(shape), start + begin, end - begin)
    raise ModelError(f"{file} is corrupt: its header describes tensor {name} as {str(entry)[:200]}.")
