"""GGUF files: the weights are those of the Hugging Face folder they were made from, and what octavo cannot run is refused."""

import gguf
import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.models.decoder import weight_shapes
from octavo.models.gguf import GGUFCheckpoint
from octavo.models.load import describe_weights
from octavo.models.safetensors import HFCheckpoint
from tests.checkpoints import gguf_name, read_safetensors, tiny_gguf, tiny_llama
from tests.models.test_safetensors import hf_name

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]
SHAPES = {
    "grouped queries, tied": {},
    "as many keys as queries, untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "biases, wide heads": {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "num_key_value_heads": 1},
}


def expected(weight: np.ndarray, kind: str) -> np.ndarray:
    """The weight after a round trip through the element type; vectors stay F32."""
    if weight.ndim == 1:
        return weight
    quant = gguf.GGMLQuantizationType[kind]
    return gguf.quants.dequantize(gguf.quants.quantize(weight, quant), quant)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_weights_are_those_of_the_original_checkpoint(shape, kind, tmp_path):
    folder = tiny_llama(tmp_path / "model", **shape)
    checkpoint = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder, kind=kind))
    original = read_safetensors(folder)
    shapes = weight_shapes(checkpoint.config)
    assert {hf_name(name) for name in shapes} == set(original)
    for name, expected_shape in shapes.items():
        raw = checkpoint.tensor(name)
        assert raw.shape == expected_shape
        assert raw.kind == (kind if len(raw.shape) == 2 else "F32")
        assert raw.data.shape == ((raw.shape[0] if len(raw.shape) == 2 else 1), raw.bytes // raw.data.shape[0])
        np.testing.assert_array_equal(raw.to_float32(), expected(original[hf_name(name)], kind), err_msg=name)
    assert checkpoint.weight_kinds()[kind] >= sum(len(s) == 2 for s in shapes.values())


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q4_0", "bfloat16"), ("Q8_0", "bfloat16")]
)
def test_config_is_that_of_the_original_checkpoint(kind, dtype, tmp_path):
    from dataclasses import replace

    folder = tiny_llama(tmp_path / "model", tie_word_embeddings=False, attention_bias=True, rms_norm_eps=2.0**-17)
    config = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder, kind=kind)).config
    assert config == replace(HFCheckpoint(folder).config, dtype=dtype)


def test_weights_are_mapped_not_read(tmp_path):
    checkpoint = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", tiny_llama(tmp_path / "model")))
    data = checkpoint.tensor("layers.1.down").data
    assert not data.flags.owndata
    assert not data.flags.writeable


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("folder") / "model")


REFUSED = {
    "general__architecture": ("bert", "architecture 'bert'.*'llama'"),
    "llama__rope__scaling__type": ("yarn", "rope.scaling.type is 'yarn'.*'none' or 'linear'"),
    "llama__expert_count": (8, "llama.expert_count is 8"),
    "llama__rope__dimension_count": (8, "rope.dimension_count is 8.*16"),
    "llama__attention__value_length": (8, "attention.value_length is 8.*16"),
    "llama__attention__sliding_window": (64, "sliding_window is 64"),
    "llama__logit_scale": (2.0, "logit_scale is 2.0"),
    "llama__attention__head_count": ([4, 4], r"attention.head_count is \(4, 4\).*integer"),
    "llama__attention__head_count_kv": (3, "4 attention heads.*3 key/value heads"),
    "llama__feed_forward_length": (64, r"blk.0.ffn_gate.weight has shape \(128, 64\): \(64, 64\)"),
    "llama__block_count": (2**31 - 1, "2147483647 layers"),
    "llama__embedding_length": (None, "does not state embedding_length"),
    "llama__attention__layer_norm_rms_epsilon": (0.0, "epsilon is 0.0"),
    "llama__rope__freq_base": (float("nan"), "freq_base is nan"),
    "split__count": (3, "one part of a split model"),
    "tokenizer__ggml__eos_token_id": (999, "999.*vocabulary of 288"),
    "tokenizer__ggml__tokens": ([str(i) for i in range(289)], "289 tokens but has embeddings for 288"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_not_supported_is_refused_by_name(key, folder, tmp_path):
    value, message = REFUSED[key]
    path = tiny_gguf(tmp_path / "model.gguf", folder, **{key: value})
    with pytest.raises(ModelError, match=message) as error:
        GGUFCheckpoint(path)
    assert str(path) in str(error.value)


def rewrite(source, target, keep=lambda name: True, kinds=None):
    """Copy a GGUF file, leaving out tensors, or storing some as another type."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        if keep(tensor.name):
            data = np.asarray(tensor.data)
            if tensor.name in (kinds or {}):
                quant = gguf.GGMLQuantizationType[kinds[tensor.name]]
                writer.add_tensor(tensor.name, gguf.quants.quantize(data, quant), raw_dtype=quant)
            else:
                writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_missing_tensors_are_refused_when_opening(folder, tmp_path):
    file = tiny_gguf(tmp_path / "model.gguf", folder)
    lost = ("blk.1.attn_v.weight", "output_norm.weight")
    with pytest.raises(ModelError, match=r"lacks tensors blk\.1\.attn_v\.weight, output_norm\.weight"):
        GGUFCheckpoint(rewrite(file, tmp_path / "less.gguf", keep=lambda name: name not in lost))
    with pytest.raises(ModelError, match=r"lacks tensor token_embd\.weight"):
        GGUFCheckpoint(rewrite(file, tmp_path / "less.gguf", keep=lambda name: name != "token_embd.weight"))


def test_other_element_types_are_refused_with_the_tensor(folder, tmp_path):
    file = tiny_gguf(tmp_path / "model.gguf", folder)
    kinds = {"blk.0.ffn_up.weight": "MXFP4", "blk.1.ffn_up.weight": "MXFP4"}
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_up\.weight' of type MXFP4 \(and 1 more.*F32, F16, BF16, Q4_0, Q4_1"):
        GGUFCheckpoint(rewrite(file, tmp_path / "other.gguf", kinds=kinds))


def test_tensors_that_would_go_unused_are_refused(folder, tmp_path):
    biased = tiny_llama(tmp_path / "biased", attention_bias=True)
    file = tiny_gguf(tmp_path / "model.gguf", biased)
    first = ("blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias", "blk.0.attn_output.bias")
    with pytest.raises(ModelError, match=r"holds tensors blk\.1\.attn_k\.bias.*does not use"):
        GGUFCheckpoint(rewrite(file, tmp_path / "some.gguf", keep=lambda name: name not in first))


def test_mixed_element_types_are_counted(folder, tmp_path):
    file = tiny_gguf(tmp_path / "model.gguf", folder)
    kinds = {gguf_name(f"model.layers.{i}.mlp.{part}_proj.weight"): "Q4_0" for i in (0, 1) for part in ("gate", "up", "down")}
    checkpoint = GGUFCheckpoint(rewrite(file, tmp_path / "mixed.gguf", kinds=kinds))
    assert checkpoint.weight_kinds() == {"F32": 14, "Q4_0": 6}
    assert describe_weights(checkpoint) == "14 x F32, 6 x Q4_0"
    assert checkpoint.config.dtype == "bfloat16"


def test_sampling_defaults(folder, tmp_path):
    stated = {"general__sampling__temp": 0.5, "general__sampling__top_k": 40}
    checkpoint = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder, **stated))
    assert checkpoint.generation_defaults() == {"temperature": 0.5, "top_k": 40}


def test_linear_rope_scaling(folder, tmp_path):
    scaled = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    rope = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder, **scaled)).config.rope
    assert (rope.kind, rope.factor) == ("linear", 4.0)
    unscaled = {**scaled, "llama__rope__scaling__type": "none"}
    rope = GGUFCheckpoint(tiny_gguf(tmp_path / "none.gguf", folder, **unscaled)).config.rope
    assert (rope.kind, rope.factor) == ("default", 1.0)


def test_the_end_of_a_turn_ends_a_generation(folder, tmp_path):
    """eos names the end of the text only; <|im_end|> (id 2) is a control token all the same."""
    checkpoint = GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder, tokenizer__ggml__eos_token_id=0))
    assert checkpoint.config.eos_token_ids == (0, 2)
    checkpoint = GGUFCheckpoint(tiny_gguf(tmp_path / "eot.gguf", folder, tokenizer__ggml__eot_token_id=1))
    assert checkpoint.config.eos_token_ids == (2, 1)


def test_a_stated_attention_scale_replaces_the_usual_one(folder, tmp_path):
    assert GGUFCheckpoint(tiny_gguf(tmp_path / "model.gguf", folder)).config.scale == 0.25  # 1 / sqrt(16)
    stated = GGUFCheckpoint(tiny_gguf(tmp_path / "stated.gguf", folder, llama__attention__scale=0.5))
    assert stated.config.scale == 0.5
    unset = GGUFCheckpoint(tiny_gguf(tmp_path / "unset.gguf", folder, llama__attention__scale=0.0))
    assert unset.config.scale == 0.25
