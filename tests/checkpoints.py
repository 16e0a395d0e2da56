"""Tiny random checkpoints for tests, written without torch: a Hugging Face folder, and the same weights as a GGUF file.

The vocabulary is 3 special tokens, the 256 bytes and a few merges, so any text encodes. Weights are large enough that greedy
continuations are not ties. Everything follows from ``seed``.

    folder = tiny_llama(tmp_path / "model")            # transformers' from_pretrained reads it too
    file = tiny_gguf(tmp_path / "model.gguf", folder)  # F32, or kind="Q8_0", ...
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    *["Ġ t", "h e", "i n", "Ġt he", "Ġ a", "r e", "o n", "e r", "a n", "Ġ s", "o r", "in g", "Ġ o", "Ġo f", "e n"],
    *["a t", "i s", "i t", "a l", "Ġ p", "Ġ w", "Ġ c", "e d", "Ġ m", "l l", "Ġa n", "Ġan d", "o u", "Ġ in"],
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 1024,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "vocab_size": len(SPECIAL_TOKENS) + 256 + len(MERGES),
}
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # as safetensors calls them
Weights = dict[str, np.ndarray]


def tiny_llama(folder: Path, *, dtype: str = "float32", seed: int = 0, shards: int = 1, **overrides: Any) -> Path:
    """A Llama checkpoint as Hugging Face publishes them. ``overrides`` replace entries of config.json (see ``TINY_LLAMA``)."""
    config = {**TINY_LLAMA, **overrides, "dtype": dtype}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    write_tokenizer(folder)
    write_safetensors(folder, random_llama_weights(config, seed), dtype, shards)
    return folder


def random_llama_weights(config: dict[str, Any], seed: int) -> Weights:
    """float32 weights under Hugging Face's names, for a complete config.json."""
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    weights: Weights = {}

    def linear(name: str, rows: int, columns: int, bias: bool = False) -> None:
        weights[f"{name}.weight"] = random.normal(0, 1.5 / columns**0.5, (rows, columns)).astype(np.float32)
        if bias:
            weights[f"{name}.bias"] = random.normal(0, 0.3, rows).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = random.uniform(0.5, 1.5, hidden).astype(np.float32)

    linear("model.embed_tokens", vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer, attention_bias, mlp_bias = f"model.layers.{i}", config["attention_bias"], config["mlp_bias"]
        norm(f"{layer}.input_layernorm")
        linear(f"{layer}.self_attn.q_proj", queries, hidden, attention_bias)
        linear(f"{layer}.self_attn.k_proj", keys, hidden, attention_bias)
        linear(f"{layer}.self_attn.v_proj", keys, hidden, attention_bias)
        linear(f"{layer}.self_attn.o_proj", hidden, queries, attention_bias)
        norm(f"{layer}.post_attention_layernorm")
        linear(f"{layer}.mlp.gate_proj", inner, hidden, mlp_bias)
        linear(f"{layer}.mlp.up_proj", inner, hidden, mlp_bias)
        linear(f"{layer}.mlp.down_proj", hidden, inner, mlp_bias)
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        linear("lm_head", vocab, hidden)
    return weights


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE over ``MERGES``; ids are special tokens, bytes, merges, in this order."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def write_safetensors(folder: Path, weights: Weights, dtype: str = "float32", shards: int = 1) -> None:
    """model.safetensors, or ``shards`` files and their index. ``dtype``: float32, float16 or bfloat16."""
    if shards == 1:
        write_safetensors_file(folder / "model.safetensors", weights, dtype)
        return
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    placed = {name: files[i % shards] for i, name in enumerate(weights)}
    for file in files:
        write_safetensors_file(folder / file, {n: w for n, w in weights.items() if placed[n] == file}, dtype)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": placed})


def write_safetensors_file(path: Path, weights: Weights, dtype: str = "float32") -> None:
    """One file: the header's length, the header, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in weights.items():
        begin = len(data)
        data += _encode(array, dtype)
        header[name] = {"dtype": DTYPES[dtype], "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(folder: Path) -> Weights:
    """Every weight of the folder as float32, under Hugging Face's names."""
    weights: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in safetensors.deserialize(file.read_bytes()):
            weights[name] = _decode(bytes(tensor["data"]), tensor["dtype"]).reshape(tensor["shape"])
    return dict(sorted(weights.items()))  # the library's order changes from run to run


def tiny_gguf(path: Path, folder: Path, *, kind: str = "F32", **metadata: Any) -> Path:
    """The checkpoint of ``folder`` as GGUF, with matrices of element type ``kind``. ``metadata`` replaces entries; a key is
    written with "__" for ".", as in ``llama__context_length=64``; None leaves it out."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    weights = read_safetensors(folder)
    fields = {**_gguf_fields(config, folder), **{key.replace("__", "."): value for key, value in metadata.items()}}
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in fields.items():
        _add_field(writer, key, value)
    factors = llama3_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for name, array in weights.items():
        if name.split(".")[-2] in ("q_proj", "k_proj"):
            array = interleave_halves(array, config["head_dim"])
        quant = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        data = gguf.quants.quantize(array, quant)
        writer.add_tensor(gguf_name(name), data, raw_dtype=quant if data.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave_halves(array: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder each head's rows from (first half, second half) to pairs that lie side by side, as llama.cpp stores Q and K."""
    order = [i // 2 if i % 2 == 0 else head_dim // 2 + i // 2 for i in range(head_dim)]
    heads = array.shape[0] // head_dim
    return np.concatenate([array[head * head_dim : (head + 1) * head_dim][order] for head in range(heads)])


def llama3_factors(config: dict[str, Any]) -> np.ndarray | None:
    """What llama.cpp's converter writes as ``rope_freqs.weight``: the divisor of each frequency under Llama 3's rule."""
    rope = config["rope_parameters"]
    if rope["rope_type"] != "llama3":
        return None
    context = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    divisors = []
    for i in range(config["head_dim"] // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * i / config["head_dim"])
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def gguf_name(name: str) -> str:
    """Hugging Face's weight name in GGUF."""
    renamed = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.layers": "blk",
    }
    for old, new in renamed.items():
        name = name.replace(old, new)
    return name


def _gguf_fields(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    rope = config["rope_parameters"]
    fields = {
        "general.name": "tiny",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(rope["rope_theta"]),
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }
    if rope["rope_type"] == "linear":
        fields["llama.rope.scaling.type"] = "linear"
        fields["llama.rope.scaling.factor"] = float(rope["factor"])
    return fields


def _add_field(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _encode(array: np.ndarray, dtype: str) -> bytes:
    if dtype != "bfloat16":
        return array.astype(dtype).tobytes()
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()  # to nearest, ties to even


def _decode(data: bytes, dtype: str) -> np.ndarray:
    if dtype != "BF16":
        return np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
