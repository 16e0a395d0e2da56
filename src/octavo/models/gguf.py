"""GGUFCheckpoint: a model in one GGUF file."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ModelError
from octavo.models import names
from octavo.models.chat import ChatTemplate
from octavo.models.checkpoint import Checkpoint, RawTensor
from octavo.models.config import DecoderConfig, Rope
from octavo.models.fields import Fields
from octavo.models.gguf_header import read_header
from octavo.models.gguf_tokenizer import build_tokenizer, end_tokens, special_token_strings
from octavo.models.kinds import BLOCKS, common_dtype, row_bytes
from octavo.models.mapped import tensor_view
from octavo.models.tokenizer import Tokenizer
from octavo.models.weights import check_config, check_rope, match_weights

ARCHITECTURES = ("llama",)
ROPE_FACTORS = "rope_freqs.weight"
WEIGHTS = {names.EMBED: "token_embd.weight", names.FINAL_NORM: "output_norm.weight", names.HEAD: "output.weight"}
LAYER_WEIGHTS = {
    names.ATTN_NORM: "attn_norm.weight",
    names.Q: "attn_q.weight",
    names.K: "attn_k.weight",
    names.V: "attn_v.weight",
    names.O: "attn_output.weight",
    names.Q_BIAS: "attn_q.bias",
    names.K_BIAS: "attn_k.bias",
    names.V_BIAS: "attn_v.bias",
    names.O_BIAS: "attn_output.bias",
    names.Q_NORM: "attn_q_norm.weight",
    names.K_NORM: "attn_k_norm.weight",
    names.POST_ATTN_NORM: "post_attention_norm.weight",
    names.MLP_NORM: "ffn_norm.weight",
    names.POST_MLP_NORM: "post_ffw_norm.weight",
    names.GATE: "ffn_gate.weight",
    names.UP: "ffn_up.weight",
    names.DOWN: "ffn_down.weight",
    names.GATE_BIAS: "ffn_gate.bias",
    names.UP_BIAS: "ffn_up.bias",
    names.DOWN_BIAS: "ffn_down.bias",
}
# Settings that change the output and that octavo does not carry out, with the values that mean "off".
WITHOUT_SUPPORT: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "rope.scaling.attn_factor": (0.0, 1.0),
}
SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


class GGUFCheckpoint(Checkpoint):
    """A model of architecture ``llama`` in a ``.gguf`` file, with its tokenizer and chat template.

    Raises ModelError, before anything is served, where the file is truncated, incomplete, or of a kind that is not supported.
    """

    def __init__(self, path: str | Path, sampling: Mapping[str, float] | None = None):
        self.path = str(path)
        self._sampling = dict(sampling or {})  # where the file says nothing
        header = read_header(Path(path))
        self._memory = header.memory
        self._tensors = header.tensors
        self._fields = Fields(self.path, header.metadata)
        architecture = self._fields.text("general.architecture")
        if architecture not in ARCHITECTURES:
            raise ModelError(f"{self.path} has architecture {architecture!r}: {', '.join(map(repr, ARCHITECTURES))} is accepted.")
        if self._fields.integer("split.count", 1, low=0) > 1:
            raise ModelError(f"{self.path} is one part of a split model: merge the parts with llama-gguf-split --merge.")
        self.config = self._read_config(architecture)
        check_config(self.path, self.config)
        shapes = {name: info.shape for name, info in self._tensors.items()}
        self._names = match_weights(self.path, self.config, shapes, _file_name, lambda name: name == ROPE_FACTORS)
        check_rope(self.path, self.config)

    def _read_config(self, architecture: str) -> DecoderConfig:
        prefix = architecture + "."
        values = self._fields.values
        fields = Fields(self.path, {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)})
        for key, off in WITHOUT_SUPPORT.items():
            if fields.get(key) not in (None, *off):
                raise ModelError(f"{self.path}: {prefix}{key} is {fields.get(key)!r}, which octavo does not support.")
        hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
        head_dim = fields.integer("attention.key_length", max(1, hidden // heads))
        for key in ("attention.value_length", "rope.dimension_count"):
            if fields.integer(key, head_dim) != head_dim:
                raise fields.refuse(key, f"the length of a head's keys, {head_dim},")
        embedding = self._tensors.get(_file_name(names.EMBED))
        if embedding is None:
            raise ModelError(f"{self.path} lacks tensor {_file_name(names.EMBED)}.")
        vocab = embedding.shape[0]
        tokens = self._fields.get("tokenizer.ggml.tokens")
        if isinstance(tokens, (list, tuple)) and len(tokens) > vocab:
            raise ModelError(f"{self.path} lists {len(tokens)} tokens but has embeddings for {vocab}.")
        return DecoderConfig(
            architecture=architecture,
            layers=fields.integer("block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate=fields.integer("feed_forward_length"),
            vocab=vocab,
            context=fields.integer("context_length"),
            norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
            rope=self._read_rope(fields, head_dim),
            tied_head=_file_name(names.HEAD) not in self._tensors,
            qkv_bias=self._has(names.Q_BIAS),
            output_bias=self._has(names.O_BIAS),
            mlp_bias=self._has(names.GATE_BIAS),
            attention_scale=_scale(fields),
            dtype=common_dtype({info.kind for info in self._tensors.values() if len(info.shape) > 1}),
            bos_token_id=self._fields.optional_integer("tokenizer.ggml.bos_token_id", low=0),
            eos_token_ids=end_tokens(self._fields),
        )

    def _read_rope(self, fields: Fields, head_dim: int) -> Rope:
        theta = fields.positive("rope.freq_base", 10000.0)
        kind = fields.text("rope.scaling.type", "linear")  # with no factor stated, the default changes nothing
        if kind not in ("none", "linear"):
            raise fields.refuse("rope.scaling.type", "'none' or 'linear'")
        factor = fields.positive("rope.scaling.factor", fields.positive("rope.scale_linear", 1.0)) if kind == "linear" else 1.0
        divisors = self._tensors.get(ROPE_FACTORS)
        if divisors is None:
            return Rope(theta, head_dim) if factor == 1.0 else Rope(theta, head_dim, "linear", factor)
        if divisors.shape != (head_dim // 2,):
            raise ModelError(f"{self.path}: tensor {ROPE_FACTORS} has shape {divisors.shape}: {(head_dim // 2,)} is needed.")
        values = self._view(ROPE_FACTORS).to_float32() * np.float32(factor)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelError(f"{self.path}: tensor {ROPE_FACTORS} holds a value that is not a finite number above 0.")
        return Rope(theta, head_dim, factors=tuple(values.tolist()))

    def _has(self, part: str) -> bool:
        return _file_name(names.layer(0, part)) in self._tensors

    def _view(self, name: str) -> RawTensor:
        info = self._tensors[name]
        return tensor_view(self._memory, info.kind, info.shape, info.offset)

    def tensor(self, name: str) -> RawTensor:
        """The weight of this canonical name. Queries' and keys' rows are put in order, which copies them."""
        if name not in self._names:
            raise ModelError(f"{self.path} has no weight {name!r}.")
        raw = self._view(self._names[name])
        if name.rpartition(".")[2] in (names.Q, names.K, names.Q_BIAS, names.K_BIAS):
            return _separate_halves(raw, self.config.head_dim)
        return raw

    def weight_kinds(self) -> dict[str, int]:
        """How many tensors there are of each element type."""
        return dict(Counter(self._tensors[name].kind for name in self._names.values()))

    def drop_pages(self) -> None:
        """Unmap the file's pages; they come back when touched."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the file's metadata describes."""
        return build_tokenizer(self._fields)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The file's default chat template."""
        source = self._fields.optional_text("tokenizer.chat_template")
        return None if source is None else ChatTemplate(source, special_token_strings(self._fields), self.path)

    def generation_defaults(self) -> dict[str, Any]:
        """Sampling defaults: what the file states (``general.sampling.*``), else what is known of the model."""
        values = self._fields.values
        return self._sampling | {name: values[key] for key, name in SAMPLING.items() if key in values}


def _file_name(name: str) -> str:
    """GGUF's name of a canonical weight."""
    if name in WEIGHTS:
        return WEIGHTS[name]
    _, index, part = name.split(".")
    return f"blk.{index}.{LAYER_WEIGHTS[part]}"


def _scale(fields: Fields) -> float | None:
    """The factor on attention scores; 0 means the usual one."""
    return None if fields.get("attention.scale") in (None, 0.0) else fields.positive("attention.scale")


def _separate_halves(raw: RawTensor, head_dim: int) -> RawTensor:
    """Rows of each head from GGUF's order, in which the two elements that rotate together lie side by side, to the canonical
    one, in which they lie half a head apart."""
    rows = raw.shape[0]
    data = raw.data.reshape(rows, -1) if len(raw.shape) == 2 or BLOCKS[raw.kind][0] == 1 else None
    if data is None:
        raise ModelError(f"A bias of queries or keys has type {raw.kind}: F32, F16 or BF16 is accepted.")
    order = np.arange(rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return RawTensor(raw.kind, raw.shape, data[order].reshape(-1, row_bytes(raw.kind, raw.shape[-1])))
