"""The general decoder: from a DecoderConfig to its program and the shapes of its weights."""

from __future__ import annotations

from octavo.models import names
from octavo.models.config import DecoderConfig
from octavo.models.program import (
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Norm,
    Op,
    Program,
    RotateAndStore,
    SelectRows,
)


def build_program(config: DecoderConfig) -> Program:
    """The operations of a pre-norm decoder with rotary positions and a gated MLP.

    The residual stream is the buffer "residual". Each block's output waits in "delta" until the next norm adds it.
    """
    queries = config.heads * config.head_dim
    buffers = {
        "residual": config.hidden,
        "normed": config.hidden,
        "delta": config.hidden,
        "qkv": queries + 2 * config.kv_heads * config.head_dim,
        "q": queries,
        "attended": queries,
        "gate_up": 2 * config.intermediate,
        "activated": config.intermediate,
    }
    ops: list[Op] = [Embed("residual", names.EMBED, config.embedding_scale)]
    for layer in range(config.layers):
        ops += _attention_block(config, layer)
        ops += _mlp_block(config, layer)
    ops.append(SelectRows(("residual", "delta")))
    ops.append(_norm(config, names.FINAL_NORM, "delta", _post_norm(config, config.layers - 1, names.POST_MLP_NORM)))
    ops.append(Head("normed", names.EMBED if config.tied_head else names.HEAD, config.logit_softcap))
    return Program(config, tuple(ops), buffers)


def _attention_block(config: DecoderConfig, layer: int) -> list[Op]:
    def name(part: str) -> str:
        return names.layer(layer, part)

    delta = "delta" if layer else None
    previous = _post_norm(config, layer - 1, names.POST_MLP_NORM) if layer else None
    qkv_biases = (names.Q_BIAS, names.K_BIAS, names.V_BIAS) if config.qkv_bias else ()
    return [
        _norm(config, name(names.ATTN_NORM), delta, previous),
        Linear("normed", "qkv", (name(names.Q), name(names.K), name(names.V)), tuple(map(name, qkv_biases))),
        RotateAndStore(
            layer,
            "qkv",
            "q",
            q_norm=name(names.Q_NORM) if config.qk_norm else None,
            k_norm=name(names.K_NORM) if config.qk_norm else None,
            eps=config.norm_eps if config.qk_norm else 0.0,
        ),
        Attention(layer, "q", "attended", config.scale, config.window(layer), config.attention_softcap),
        Linear("attended", "delta", (name(names.O),), (name(names.O_BIAS),) if config.output_bias else ()),
    ]


def _mlp_block(config: DecoderConfig, layer: int) -> list[Op]:
    def name(part: str) -> str:
        return names.layer(layer, part)

    input_biases = (names.GATE_BIAS, names.UP_BIAS) if config.mlp_bias else ()
    return [
        _norm(config, name(names.MLP_NORM), "delta", _post_norm(config, layer, names.POST_ATTN_NORM)),
        Linear("normed", "gate_up", (name(names.GATE), name(names.UP)), tuple(map(name, input_biases))),
        GatedActivation("gate_up", "activated", config.activation),
        Linear("activated", "delta", (name(names.DOWN),), (name(names.DOWN_BIAS),) if config.mlp_bias else ()),
    ]


def _norm(config: DecoderConfig, weight: str, delta: str | None, delta_weight: str | None) -> Norm:
    return Norm("residual", delta, "normed", weight, config.norm_eps, delta_weight)


def _post_norm(config: DecoderConfig, layer: int, part: str) -> str | None:
    return names.layer(layer, part) if config.sandwich_norm else None


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every weight that the program reads, in order of first use, and the shape it must have."""
    hidden, inner, head = config.hidden, config.intermediate, config.head_dim
    queries, keys = config.heads * head, config.kv_heads * head
    parts: dict[str, tuple[int, ...]] = {
        names.EMBED: (config.vocab, hidden),
        names.HEAD: (config.vocab, hidden),
        names.FINAL_NORM: (hidden,),
        names.ATTN_NORM: (hidden,),
        names.POST_ATTN_NORM: (hidden,),
        names.MLP_NORM: (hidden,),
        names.POST_MLP_NORM: (hidden,),
        names.Q_NORM: (head,),
        names.K_NORM: (head,),
        names.Q: (queries, hidden),
        names.K: (keys, hidden),
        names.V: (keys, hidden),
        names.O: (hidden, queries),
        names.Q_BIAS: (queries,),
        names.K_BIAS: (keys,),
        names.V_BIAS: (keys,),
        names.O_BIAS: (hidden,),
        names.GATE: (inner, hidden),
        names.UP: (inner, hidden),
        names.DOWN: (hidden, inner),
        names.GATE_BIAS: (inner,),
        names.UP_BIAS: (inner,),
        names.DOWN_BIAS: (hidden,),
    }
    return {name: parts[name.rpartition(".")[2]] for name in build_program(config).weight_names()}
