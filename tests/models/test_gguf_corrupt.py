"""Whatever is done to a GGUF file, opening it ends with a checkpoint or a ModelError, soon and in little memory."""

import struct
import tracemalloc

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ModelError, RequestError
from octavo.models.decoder import weight_shapes
from octavo.models.gguf import GGUFCheckpoint
from tests.checkpoints import tiny_gguf, tiny_llama

EXTREMES = [
    b"\xff",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\0" * 8,
    struct.pack("<Q", 2**32),
    struct.pack("<Q", 2**63),
    b"\x7f" + b"\xff" * 7,
]


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A small valid file."""
    folder = tmp_path_factory.mktemp("gguf")
    model = tiny_llama(folder / "model", hidden_size=32, intermediate_size=32, head_dim=8, num_hidden_layers=1)
    return tiny_gguf(folder / "valid.gguf", model, kind="Q8_0")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tmp_path_factory.mktemp("corrupt") / "model.gguf"


def use(path):
    """All that a server does with a checkpoint before it serves."""
    checkpoint = GGUFCheckpoint(path)
    for name in weight_shapes(checkpoint.config):
        checkpoint.tensor(name).to_float32()
    tokenizer = checkpoint.tokenizer
    tokenizer.decode(tokenizer.encode("Hello 2024"))
    if checkpoint.chat_template is not None:
        checkpoint.chat_template.render([{"role": "user", "content": "hi"}])


def outcome(path):
    """What the user is told; the path where all is well, or where a damaged chat template rejects its messages."""
    try:
        use(path)
    except ModelError as error:
        return str(error)
    except RequestError:
        pass
    return str(path)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_only_model_errors_escape(valid, target, data):
    content = bytearray(valid.read_bytes())
    end = gguf.GGUFReader(valid).data_offset
    regions = st.integers(0, 1000) | st.integers(end - 700, end - 1) | st.integers(0, end - 1)  # settings, tensors, everything
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(regions)
        piece = data.draw(st.sampled_from(EXTREMES) | st.binary(min_size=1, max_size=8))
        content[at : at + len(piece)] = piece
    if data.draw(st.integers(0, 3)) == 0:
        del content[data.draw(st.integers(0, len(content))) :]
    target.write_bytes(content)
    tracemalloc.start()
    message = outcome(target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "model.gguf" in message
    assert peak < 64 * 2**20


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_refused(valid, target, share):
    content = valid.read_bytes()
    target.write_bytes(content[: int(share * (len(content) - 32))])  # the last tensor is followed by at most 31 bytes of padding
    with pytest.raises(ModelError, match=r"model\.gguf (is truncated|is empty|is not a GGUF file|is corrupt)"):
        GGUFCheckpoint(target)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"GGML", "not a GGUF file: it begins with b'GGML'"),
        (4, struct.pack("<I", 1), "version 1: little-endian versions 2 and 3"),
        (4, struct.pack(">I", 3), "big-endian.*version 3"),
        (4, struct.pack("<I", 4), "version 4"),
        (8, struct.pack("<Q", 2**62), "states 4611686018427387904 tensors"),
        (16, struct.pack("<Q", 2**40), "states 1099511627776 metadata entries"),
        (24, struct.pack("<Q", 2**63), "the name of metadata entry 0 ends beyond the end of the file"),
    ],
)
def test_a_wrong_header_is_refused_in_words(at, value, message, valid, target):
    content = bytearray(valid.read_bytes())
    content[at : at + len(value)] = value
    target.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        GGUFCheckpoint(target)


def test_version_2_is_read_like_version_3(valid, target):
    content = valid.read_bytes()
    target.write_bytes(content[:4] + struct.pack("<I", 2) + content[8:])
    assert GGUFCheckpoint(target).config.hidden == 32


def entry(key, kind, value):
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(b"a", 4, b"\1\0\0\0")] * 2, "'a' appears twice"),
        ([entry(b"a", 99, b"")], "'a' has the value type 99"),
        ([entry(b"a", 9, struct.pack("<IQ", 9, 1) + b"\0" * 64)], "'a' is an array of value type 9"),
        ([entry(b"a", 9, struct.pack("<IQ", 5, 2**60))], "'a' ends beyond the end"),
        ([entry(b"a", 8, struct.pack("<Q", 2) + b"\xff\xfe")], "'a' is not valid UTF-8"),
        ([entry(b"general.alignment", 4, struct.pack("<I", 24))], "general.alignment 24: a power of two"),
    ],
)
def test_wrong_metadata_is_refused_in_words(entries, message, target):
    target.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries) + b"\0" * 64)
    with pytest.raises(ModelError, match=message):
        GGUFCheckpoint(target)


def tensor(name, dims, kind, offset):
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([tensor(b"t", [4], 0, 0)] * 2, "'t' appears twice"),
        ([tensor(b"t", [4] * 5, 0, 0)], "'t' has 5 dimensions"),
        ([tensor(b"t", [4, 0], 0, 0)], "'t' of type F32 has shape"),
        ([tensor(b"t", [48], 8, 0)], "'t' of type Q8_0 has shape.*multiple of 32"),
        ([tensor(b"t", [4], 0, 4)], "'t' begins at byte 4.*no multiple of 32"),
        ([tensor(b"t", [2**40, 2**40], 0, 0)], "'t' ends at byte .* beyond the end"),
        ([tensor(b"t", [4], 0, 2**62)], "'t' ends at byte .* beyond the end"),
        ([tensor(b"t", [256], 16, 0)], "'t' of type IQ2_XXS: the types F32"),
        ([tensor(b"t", [256], 777, 0)], "'t' of type number 777"),
    ],
)
def test_wrong_tensors_are_refused_in_words(tensors, message, target):
    target.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0) + b"".join(tensors) + b"\0" * 128)
    with pytest.raises(ModelError, match=message):
        GGUFCheckpoint(target)
