"""Rotary frequencies against transformers', and through GGUF's own factors."""

import numpy as np
import pytest

from octavo.models.gguf import GGUFCheckpoint
from octavo.models.safetensors import HFCheckpoint
from tests.checkpoints import tiny_gguf, tiny_llama

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "default, another base": {"rope_type": "default", "rope_theta": 123456.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "llama3, other bounds": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 16.0,
        "original_max_position_embeddings": 1024,
    },
}


def transformers_frequencies(folder):
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder)).inv_freq.numpy()


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_frequencies_are_those_of_transformers(rope, tmp_path):
    folder = tiny_llama(tmp_path / "model", rope_parameters=rope, head_dim=64, hidden_size=64)
    expected = transformers_frequencies(folder)
    np.testing.assert_allclose(HFCheckpoint(folder).config.rope.inverse_frequencies(), expected, rtol=1e-6)
    file = tiny_gguf(tmp_path / "model.gguf", folder)
    np.testing.assert_allclose(GGUFCheckpoint(file).config.rope.inverse_frequencies(), expected, rtol=1e-6)


def test_llama3_without_an_original_length_takes_the_context(tmp_path):
    rope = {key: value for key, value in ROPES["llama3"].items() if not key.startswith("original")}
    folder = tiny_llama(tmp_path / "model", rope_parameters=rope, max_position_embeddings=512)
    np.testing.assert_allclose(
        HFCheckpoint(folder).config.rope.inverse_frequencies(), transformers_frequencies(folder), rtol=1e-6
    )


def test_linear_scaling_besides_a_files_own_factors(tmp_path):
    """llama.cpp divides by both."""
    folder = tiny_llama(tmp_path / "model", rope_parameters=ROPES["llama3"])
    stretched = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    rope = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder, **stretched)).config.rope
    np.testing.assert_allclose(rope.inverse_frequencies(), transformers_frequencies(folder) / 4, rtol=1e-6)
