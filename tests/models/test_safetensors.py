"""Hugging Face folders: the weights are transformers' own, and what octavo cannot run is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.models.decoder import weight_shapes
from octavo.models.safetensors import HFCheckpoint
from tests.checkpoints import tiny_llama, write_json, write_tokenizer

HF_PARTS = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{name: f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"{name}_bias": f"self_attn.{name}_proj.bias" for name in "qkvo"},
    **{name: f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{f"{name}_bias": f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")},
}
HF_NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}


def hf_name(canonical: str) -> str:
    if canonical in HF_NAMES:
        return HF_NAMES[canonical]
    _, index, part = canonical.split(".")
    return f"model.layers.{index}.{HF_PARTS[part]}"


SHAPES = {
    "grouped queries, tied": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "as many keys as queries, untied": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "one key head, head_dim apart from hidden": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24},
    "biases": {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    "sharded": {"num_attention_heads": 4, "num_key_value_heads": 2, "shard": "60KB"},
    "bfloat16": {"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"},
    "float16, sharded": {"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "float16", "shard": "30KB"},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_weights_are_those_that_transformers_saved(shape, tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(shape)
    dtype = shape.pop("dtype", "float32")
    shard = shape.pop("shard", "5GB")
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        max_position_embeddings=77,
        dtype=dtype,
        **shape,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases are all ones and zeros to begin with
            parameter.normal_()
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard != "5GB")

    checkpoint = HFCheckpoint(tmp_path)

    state = model.state_dict()
    shapes = weight_shapes(checkpoint.config)
    for name, expected_shape in shapes.items():
        raw = checkpoint.tensor(name)
        assert raw.shape == expected_shape
        assert raw.kind == {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[dtype]
        np.testing.assert_array_equal(raw.to_float32(), state[hf_name(name)].float().numpy(), err_msg=name)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert {hf_name(name) for name in shapes} == set(state) - tied
    found = checkpoint.config
    assert (found.layers, found.hidden, found.heads, found.kv_heads) == (
        3,
        96,
        config.num_attention_heads,
        config.num_key_value_heads,
    )
    assert (found.head_dim, found.intermediate, found.vocab, found.context) == (config.head_dim, 160, 300, 77)
    assert (found.norm_eps, found.tied_head, found.dtype) == (config.rms_norm_eps, config.tie_word_embeddings, dtype)
    assert (found.activation, found.bos_token_id, found.eos_token_ids) == ("silu", 1, (2,))
    assert sum(checkpoint.weight_kinds().values()) == len(shapes)


def edit_config(folder: Path, remove: tuple[str, ...] = (), **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in remove} | changes
    write_json(folder / "config.json", config)


@pytest.fixture
def folder(tmp_path):
    return tiny_llama(tmp_path / "model")


def test_config_written_before_transformers_5(folder):
    scaling = {"type": "linear", "factor": 4.0}
    edit_config(folder, ("rope_parameters", "dtype", "head_dim"), rope_theta=5e5, rope_scaling=scaling, torch_dtype="float16")
    config = HFCheckpoint(folder).config
    assert (config.rope.theta, config.rope.kind, config.rope.factor, config.rope.dim) == (5e5, "linear", 4.0, 16)
    assert config.dtype == "float16"


def test_dtype_is_that_of_the_weights_where_config_json_does_not_say(tmp_path):
    folder = tiny_llama(tmp_path / "model", dtype="bfloat16")
    edit_config(folder, ("dtype",))
    assert HFCheckpoint(folder).config.dtype == "bfloat16"


def test_ends_of_generation_config_replace_those_of_the_config(folder):
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9, "top_k": None})
    checkpoint = HFCheckpoint(folder)
    assert checkpoint.config.eos_token_ids == (2, 0)
    assert checkpoint.generation_defaults() == {"temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").unlink()
    checkpoint = HFCheckpoint(folder)
    assert checkpoint.config.eos_token_ids == (2,)
    assert checkpoint.generation_defaults() == {}


def test_a_copy_of_a_tied_head_is_not_in_the_way(folder):
    untied = tiny_llama(folder.parent / "untied", tie_word_embeddings=False)
    edit_config(untied, tie_word_embeddings=True)
    checkpoint = HFCheckpoint(untied)
    assert checkpoint.config.tied_head
    with pytest.raises(ModelError, match="no weight 'head'"):
        checkpoint.tensor("head")


REFUSED = [
    ("model_type", "gpt2", r"model_type is 'gpt2'.*'llama'"),
    ("architectures", ["LlamaForSequenceClassification"], "LlamaForSequenceClassification.*LlamaForCausalLM"),
    ("quantization_config", {"quant_method": "awq"}, "quantization_config is .*awq.*not support"),
    ("pretraining_tp", 2, "pretraining_tp is 2"),
    ("hidden_act", "relu", "hidden_act is 'relu'.*'silu' or 'gelu_pytorch_tanh'"),
    ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"),
    ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "rope_scaling: rope_type is 'yarn'.*'llama3'"),
    ("rope_parameters", {"rope_type": "dynamic", "factor": 4.0}, "rope_parameters: rope_type is 'dynamic'"),
    ("rope_parameters", {"rope_type": "linear", "factor": 1e-320}, "the rotary base 10000 and its scaling"),
    ("hidden_size", "64", "hidden_size is '64'.*integer"),
    ("num_hidden_layers", 10**9, "1000000000 layers.*tensors"),
    ("num_hidden_layers", True, "num_hidden_layers is True.*integer"),
    ("num_attention_heads", None, "num_attention_heads"),
    ("num_key_value_heads", 3, "4 attention heads.*3 key/value heads"),
    ("rms_norm_eps", 0, "rms_norm_eps is 0"),
    ("vocab_size", 100, r"embed_tokens.weight has shape \(288, 64\): \(100, 64\)"),
    ("mlp_bias", True, "lacks tensors model.layers.0.mlp.gate_proj.bias.*and 2 more"),
    ("tie_word_embeddings", "yes", "tie_word_embeddings is 'yes': true or false"),
    ("dtype", "float64", "dtype is 'float64'.*'bfloat16'"),
    ("eos_token_id", [1, "2"], r"eos_token_id is \[1, '2'\]"),
    ("bos_token_id", 288, "token id 288.*vocabulary of 288"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(key, value, message, folder):
    edit_config(folder, **{key: value})
    (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=message) as error:
        HFCheckpoint(folder)
    assert str(folder) in str(error.value)


def test_weights_that_would_go_unused_are_refused(tmp_path):
    folder = tiny_llama(tmp_path / "model", attention_bias=True)
    edit_config(folder, attention_bias=False)
    with pytest.raises(ModelError, match=r"holds tensors model\.layers\.0\.self_attn\.k_proj\.bias.*and 4 more.*does not use"):
        HFCheckpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"has no {name}"):
        HFCheckpoint(folder).tokenizer  # noqa: B018


def test_pickled_weights_are_refused_with_what_is_needed(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"\.bin.*safetensors"):
        HFCheckpoint(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = tiny_llama(tmp_path / "model", shards=3)
    HFCheckpoint(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match="'model-00002-of-00003"):
        HFCheckpoint(folder)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path):
    folder = tiny_llama(tmp_path / "model", shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001-of", "../model/model-00001-of"))
    with pytest.raises(ModelError, match="not a file of that folder"):
        HFCheckpoint(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated_weights_are_refused(keep, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors.*(truncated|is empty)"):
        HFCheckpoint(folder)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [64], "data_offsets": [0, 255]}, "255 bytes where 256"),
        ({"dtype": "F8_E4M3", "shape": [64], "data_offsets": [0, 64]}, "model.norm.weight has dtype F8_E4M3.*F32, F16, BF16"),
        ({"dtype": "F32", "shape": [64], "data_offsets": [0, 10**12]}, "truncated: tensor model.norm.weight ends at byte"),
        ({"dtype": "F32", "shape": [64], "data_offsets": [-4, 252]}, "corrupt.*model.norm.weight"),
        ({"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "corrupt.*model.norm.weight"),
        ({"dtype": "F32", "shape": "64"}, "corrupt.*model.norm.weight"),
        (7, "corrupt.*model.norm.weight"),
    ],
)
def test_a_corrupt_header_is_refused(entry, message, folder):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["model.norm.weight"] = entry
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
    with pytest.raises(ModelError, match=message):
        HFCheckpoint(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff\xfe{}"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json_is_refused(name, text, folder):
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=name):
        HFCheckpoint(folder)


def test_templates_and_special_tokens_come_from_the_folder(folder):
    message = [{"role": "user", "content": "hi"}]
    prompt = HFCheckpoint(folder).chat_template.render(message)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    (folder / "chat_template.jinja").unlink()
    assert HFCheckpoint(folder).chat_template is None
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    settings = {"bos_token": {"content": "<|endoftext|>"}, "eos_token": "<|im_end|>"}
    for stated in (template, [{"name": "other", "template": "x"}, {"name": "default", "template": template}]):
        write_json(folder / "tokenizer_config.json", {**settings, "chat_template": stated})
        assert HFCheckpoint(folder).chat_template.render(message) == "<|endoftext|>hi<|im_end|>"


def test_a_broken_tokenizer_is_refused_when_it_is_asked_for(folder):
    (folder / "tokenizer.json").write_text("{}")
    checkpoint = HFCheckpoint(folder)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a valid"):
        checkpoint.tokenizer  # noqa: B018
    write_tokenizer(folder)
    assert HFCheckpoint(folder).tokenizer.bos_token_id == 0
