"""Which runner the engine takes, and which combinations of settings it refuses by name."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.models.decoder import build_program
from octavo.native import isa
from octavo.runner.choice import choose_runner
from tests.runner.test_other_decoders import BASE

compiled = pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")


def choose(weights="bfloat16", model=BASE, **settings):
    """The choice for a model whose file has weights of this type."""
    return choose_runner(EngineConfig(**settings), build_program(dataclasses.replace(model, dtype=weights)))


@compiled
@pytest.mark.parametrize("weights", ["bfloat16", "float16"])
def test_auto_is_native_for_16_bit_models(weights):
    choice = choose(weights, runner="auto")
    assert (choice.name, choice.dtype, choice.kv_dtype, choice.why) == ("native", "bfloat16", "bfloat16", None)
    assert choose(weights, runner="native", kv_cache_dtype="int8").kv_dtype == "int8"
    assert choose(weights, runner="native", enforce_eager=True).name == "native"
    assert choose(weights, runner="auto", attention="per-request").name == "native"


@compiled
@pytest.mark.parametrize(
    ("weights", "settings", "words"),
    [
        ("bfloat16", {"attention": "gather"}, "attention=gather exists on the torch runner only"),
        ("bfloat16", {"dtype": "float32"}, "dtype=float32 exists on the torch runner only"),
        ("bfloat16", {"dtype": "float16"}, "dtype=float16 exists on the torch runner only"),
        ("float32", {}, "the model's weights are float32"),
    ],
)
def test_what_only_torch_has(weights, settings, words):
    choice = choose(weights, runner="auto", **settings)
    assert choice.name == "torch"
    assert words in choice.why
    with pytest.raises(ConfigError, match=f"runner is native, but {words}"):
        choose(weights, runner="native", **settings)


@compiled
def test_float32_weights_are_rounded_where_that_is_asked_for():
    assert choose("float32", runner="auto", dtype="bfloat16").name == "native"


@compiled
def test_a_model_that_the_library_does_not_support():
    model = dataclasses.replace(BASE, head_dim=24, rope=dataclasses.replace(BASE.rope, dim=24))
    choice = choose(model=model, runner="auto")
    assert choice.name == "torch"
    assert "head_dim" in choice.why


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(isa, "built", dict)
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    choice = choose(runner="auto")
    assert choice.name == "torch"
    assert "not compiled" in choice.why
    assert "apt install g++" in choice.why
    with pytest.raises(ConfigError, match="runner is native, but the native library was not compiled"):
        choose(runner="native")
    monkeypatch.setenv(isa.VARIABLE, "avx2")
    with pytest.raises(ConfigError, match="OCTAVO_ISA is avx2, but the native library was not compiled"):
        choose(runner="auto")


def test_settings_that_torch_does_not_have():
    with pytest.raises(ConfigError, match="enforce_eager is true, but the torch runner computes"):
        choose(runner="torch", enforce_eager=True)
    with pytest.raises(ConfigError, match=r"enforce_eager is true, but the torch runner computes \(attention=gather exists"):
        choose(runner="auto", attention="gather", enforce_eager=True)
    with pytest.raises(ConfigError, match="kv_cache_dtype is int8, but the torch runner computes in float32"):
        choose(runner="torch", dtype="float32", kv_cache_dtype="int8")
    assert choose(runner="torch", dtype="bfloat16", kv_cache_dtype="bfloat16").kv_dtype == "bfloat16"
