"""config.json of a Hugging Face folder as a DecoderConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.models.config import DecoderConfig, Rope
from octavo.models.fields import Fields

MODEL_TYPES = {"llama": "LlamaForCausalLM"}
DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# Settings that change the output and that octavo does not carry out, with the values that mean "off" (besides null).
WITHOUT_SUPPORT: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object.")
    return value


def read_config(path: Path, generation: Fields) -> tuple[DecoderConfig, str | None]:
    """The decoder that ``path`` (config.json) describes, and the dtype that it states, None where it leaves that to the weights.

    Defaults are those of transformers' ``LlamaConfig``. Raises ModelError, naming the field, for anything not supported.
    """
    fields = Fields(str(path), read_json(path))
    model_type = fields.text("model_type")
    if model_type not in MODEL_TYPES:
        raise fields.refuse("model_type", " or ".join(map(repr, MODEL_TYPES)))
    architecture = MODEL_TYPES[model_type]
    if fields.get("architectures") not in (None, [architecture]):
        raise fields.refuse("architectures", repr([architecture]))
    for key, off in WITHOUT_SUPPORT.items():
        if fields.get(key) not in (None, *off):
            raise ModelError(f"{path}: {key} is {fields.get(key)!r}, which octavo does not support.")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", max(1, hidden // heads))
    activation = fields.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise fields.refuse("hidden_act", " or ".join(map(repr, ACTIVATIONS)))
    attention_bias = fields.boolean("attention_bias", False)
    context = fields.integer("max_position_embeddings", 2048)
    config = DecoderConfig(
        architecture=model_type,
        layers=fields.integer("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        context=context,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope=_read_rope(fields, head_dim, context),
        tied_head=fields.boolean("tie_word_embeddings", False),
        activation=ACTIVATIONS[activation],
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
        bos_token_id=fields.optional_integer("bos_token_id", low=0),
        eos_token_ids=_token_ids(generation) or _token_ids(fields),
    )
    return config, _read_dtype(fields)


def _read_rope(fields: Fields, head_dim: int, context: int) -> Rope:
    """From ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling`` (before); the latter wins, as there."""
    key = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    rope = fields.table(key)
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise rope.refuse("partial_rotary_factor", "1")
    kind_key = "rope_type" if rope.get("rope_type") is not None else "type"
    kind = rope.text(kind_key, "default")
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise ModelError(f"{fields.where}: {key} differs by kind of layer, which octavo does not support.")
    if kind == "default":
        return Rope(theta, head_dim)
    if kind == "linear":
        return Rope(theta, head_dim, kind, rope.positive("factor"))
    if kind != "llama3":
        raise rope.refuse(kind_key, "'default', 'linear' or 'llama3'")
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.refuse("high_freq_factor", f"a number above low_freq_factor, {low:g},")
    original = rope.integer("original_max_position_embeddings", context)
    return Rope(theta, head_dim, kind, rope.positive("factor"), low, high, original)


def _read_dtype(fields: Fields) -> str | None:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    dtype = fields.optional_text(key)
    if dtype not in (None, *DTYPES):
        raise fields.refuse(key, " or ".join(map(repr, DTYPES)))
    return dtype


def _token_ids(fields: Fields) -> tuple[int, ...]:
    """``eos_token_id``: one, several or none."""
    value = fields.get("eos_token_id")
    tokens = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in tokens):
        raise fields.refuse("eos_token_id", "a token id or a list of them")
    return tuple(dict.fromkeys(tokens))
