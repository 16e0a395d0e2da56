"""Whatever config.json or a safetensors header says, opening the folder ends with a checkpoint or a ModelError."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ModelError
from octavo.models.decoder import weight_shapes
from octavo.models.safetensors import HFCheckpoint
from tests.checkpoints import TINY_LLAMA, tiny_llama, write_json

NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-2, 300) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ROPE_KEYS = ["rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
ROPES = st.dictionaries(st.sampled_from(ROPE_KEYS), VALUES | st.sampled_from(["default", "linear", "llama3"]), max_size=6)
KEYS = [*TINY_LLAMA, "rope_scaling", "rope_theta", "dtype", "pretraining_tp", "quantization_config"]


def use(folder):
    checkpoint = HFCheckpoint(folder)
    for name in weight_shapes(checkpoint.config):
        checkpoint.tensor(name).to_float32()
    checkpoint.generation_defaults()
    assert all(0 <= f < float("inf") for f in checkpoint.config.rope.inverse_frequencies())


def outcome(folder):
    """What the user is told; the folder where all is well."""
    try:
        use(folder)
    except ModelError as error:
        return str(error)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("corrupt") / "model", hidden_size=32, intermediate_size=32, head_dim=8)


@settings(max_examples=200, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES | ROPES, min_size=1, max_size=3))
def test_any_config(folder, changes):
    original = (folder / "config.json").read_text()
    try:
        write_json(folder / "config.json", json.loads(original) | changes)
        assert str(folder) in outcome(folder)
    finally:
        (folder / "config.json").write_text(original)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_header(folder, data):
    file = folder / "model.safetensors"
    original = file.read_bytes()
    end = 8 + int.from_bytes(original[:8], "little")
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 9) | st.integers(0, end - 1))
        piece = data.draw(
            st.sampled_from([b"9", b"0", b"-", b"\xff" * 8, b"[", b'"', b"null"]) | st.binary(min_size=1, max_size=6)
        )
        content[at : at + len(piece)] = piece
    try:
        file.write_bytes(content)
        assert str(folder) in outcome(folder)
    finally:
        file.write_bytes(original)
