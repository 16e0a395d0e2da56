"""The program that a config leads to."""

from dataclasses import replace

from octavo.models.config import DecoderConfig, Rope
from octavo.models.decoder import build_program, weight_shapes
from octavo.models.program import (
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Norm,
    RotateAndStore,
    SelectRows,
)

LLAMA = DecoderConfig(
    architecture="llama",
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=4,
    intermediate=12,
    vocab=50,
    context=64,
    norm_eps=1e-5,
    rope=Rope(10000.0, 4),
    tied_head=True,
)


def test_llama():
    expected = [
        Embed("residual", "embed"),
        Norm("residual", None, "normed", "layers.0.attn_norm", 1e-5),
        Linear("normed", "qkv", ("layers.0.q", "layers.0.k", "layers.0.v")),
        RotateAndStore(0, "qkv", "q"),
        Attention(0, "q", "attended", 0.5),
        Linear("attended", "delta", ("layers.0.o",)),
        Norm("residual", "delta", "normed", "layers.0.mlp_norm", 1e-5),
        Linear("normed", "gate_up", ("layers.0.gate", "layers.0.up")),
        GatedActivation("gate_up", "activated", "silu"),
        Linear("activated", "delta", ("layers.0.down",)),
        Norm("residual", "delta", "normed", "layers.1.attn_norm", 1e-5),
        Linear("normed", "qkv", ("layers.1.q", "layers.1.k", "layers.1.v")),
        RotateAndStore(1, "qkv", "q"),
        Attention(1, "q", "attended", 0.5),
        Linear("attended", "delta", ("layers.1.o",)),
        Norm("residual", "delta", "normed", "layers.1.mlp_norm", 1e-5),
        Linear("normed", "gate_up", ("layers.1.gate", "layers.1.up")),
        GatedActivation("gate_up", "activated", "silu"),
        Linear("activated", "delta", ("layers.1.down",)),
        SelectRows(("residual", "delta")),
        Norm("residual", "delta", "normed", "final_norm", 1e-5),
        Head("normed", "embed"),
    ]
    program = build_program(LLAMA)
    assert list(program.ops) == expected
    assert program.buffers == {
        "residual": 8,
        "normed": 8,
        "delta": 8,
        "qkv": 32,
        "q": 16,
        "attended": 16,
        "gate_up": 24,
        "activated": 12,
    }


def of_kind(config, kind):
    return [op for op in build_program(config).ops if isinstance(op, kind)]


def test_untied_head():
    config = replace(LLAMA, tied_head=False, logit_softcap=30.0)
    assert of_kind(config, Head) == [Head("normed", "head", 30.0)]
    assert weight_shapes(config)["head"] == (50, 8)
    assert "head" not in weight_shapes(LLAMA)


def test_biases():
    config = replace(LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True)
    assert [op.biases for op in of_kind(config, Linear)[:4]] == [
        ("layers.0.q_bias", "layers.0.k_bias", "layers.0.v_bias"),
        ("layers.0.o_bias",),
        ("layers.0.gate_bias", "layers.0.up_bias"),
        ("layers.0.down_bias",),
    ]
    shapes = weight_shapes(config)
    assert [shapes[f"layers.1.{part}_bias"] for part in ("q", "k", "o", "up", "down")] == [(16,), (8,), (8,), (12,), (8,)]
    only_qkv = [op.biases for op in of_kind(replace(LLAMA, qkv_bias=True), Linear)[:4]]
    assert [len(biases) for biases in only_qkv] == [3, 0, 0, 0]


def test_query_and_key_norms():
    config = replace(LLAMA, qk_norm=True)
    assert of_kind(config, RotateAndStore)[1] == RotateAndStore(1, "qkv", "q", "layers.1.q_norm", "layers.1.k_norm", 1e-5)
    assert weight_shapes(config)["layers.1.q_norm"] == (4,)


def test_sandwich_norms_go_to_the_norm_that_adds_the_block():
    """Each block's output is normalised by its own weight, then added, where the next norm reads the sum."""
    norms = of_kind(replace(LLAMA, sandwich_norm=True), Norm)
    assert [(norm.delta, norm.delta_weight, norm.weight) for norm in norms] == [
        (None, None, "layers.0.attn_norm"),
        ("delta", "layers.0.post_attn_norm", "layers.0.mlp_norm"),
        ("delta", "layers.0.post_mlp_norm", "layers.1.attn_norm"),
        ("delta", "layers.1.post_attn_norm", "layers.1.mlp_norm"),
        ("delta", "layers.1.post_mlp_norm", "final_norm"),
    ]


def test_windows_scales_and_caps():
    config = replace(
        LLAMA, windows=(16, None), attention_scale=0.1, attention_softcap=50.0, embedding_scale=3.0, activation="gelu_tanh"
    )
    assert of_kind(config, Attention) == [
        Attention(0, "q", "attended", 0.1, 16, 50.0),
        Attention(1, "q", "attended", 0.1, None, 50.0),
    ]
    assert of_kind(config, Embed) == [Embed("residual", "embed", 3.0)]
    assert of_kind(config, GatedActivation)[0].activation == "gelu_tanh"
