"""Programs with what Llama does not have, against their definition in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.kv.arena import KVSpec
from octavo.models.config import DecoderConfig, Rope
from octavo.models.decoder import build_program
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.plan import Logits, Row, StepPlan
from tests.placement import make_view
from tests.runner.numpy_decoder import RandomCheckpoint, logits

BASE = DecoderConfig(
    architecture="test",
    layers=2,
    hidden=48,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=80,
    vocab=90,
    context=400,
    norm_eps=1e-6,
    rope=Rope(10000.0, 16),
    tied_head=True,
)
DECODERS = {
    "query and key norms": {"qk_norm": True},
    "part-rotated heads": {"rope": Rope(500.0, 6), "qk_norm": True},
    "linear rope": {"rope": Rope(10000.0, 16, kind="linear", factor=4.0)},
    "stated rope factors": {"rope": Rope(10000.0, 16, factors=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))},
    "windows": {"windows": (5, None)},
    "caps": {"attention_softcap": 3.0, "logit_softcap": 2.0},
    "everything": {
        "qk_norm": True,
        "sandwich_norm": True,
        "windows": (9, None),
        "attention_softcap": 5.0,
        "logit_softcap": 4.0,
        "activation": "gelu_tanh",
        "embedding_scale": 6.9,
        "attention_scale": 0.3,
        "output_bias": True,
        "qkv_bias": True,
        "mlp_bias": True,
        "tied_head": False,
    },
}


@pytest.mark.parametrize("attention", ["fused", "gather", "per-request"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_chunks_and_single_tokens_of_a_batch(decoder, attention):
    config = dataclasses.replace(BASE, **DECODERS[decoder])
    checkpoint, program = RandomCheckpoint(config), build_program(config)
    runner = TorchRunner(
        program, checkpoint, dtype="float32", attention=attention, threads=1, slots=3, max_model_len=130, max_batched_tokens=400
    )
    runner.keep_logits = True
    view = make_view(KVSpec(config.layers, config.kv_heads, config.head_dim, "float32"), 3, 130, 8)
    sequences = np.random.default_rng(1).integers(0, config.vocab, (3, 130)).tolist()
    expected = [logits(program, checkpoint.weights, tokens) for tokens in sequences]
    for spans in ([(0, 100), (0, 30), (0, 1)], [(100, 9), (30, 1), (1, 2)], [(109, 1), (31, 90), (3, 1)]):
        rows = tuple(Row(i, s, n, sequences[i][s : s + n], Logits.ALL) for i, (s, n) in enumerate(spans))
        found = runner.execute(StepPlan(0, rows), view).logits
        want = np.concatenate([expected[i][s : s + n] for i, (s, n) in enumerate(spans)])
        assert np.abs(found - want).max() < 1e-4


def test_an_unknown_activation_is_refused_by_name():
    config = dataclasses.replace(BASE, activation="relu")
    with pytest.raises(ConfigError, match=r"activation is relu: silu, gelu_tanh are accepted\."):
        TorchRunner(
            build_program(config),
            RandomCheckpoint(config),
            dtype="float32",
            attention="fused",
            threads=1,
            slots=1,
            max_model_len=9,
            max_batched_tokens=9,
        )
