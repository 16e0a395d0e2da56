"""Writes a Hugging Face folder of a real model's shapes with random weights, so that speed can be measured without its weights.

    python benchmarks/make_checkpoint.py FOLDER [--shape qwen2.5-1.5b|smollm2-135m] [--layers N]

Weights are bfloat16, normal with a standard deviation that keeps activations of order one. The tokenizer knows bytes only, the
vocabulary has its full size. "qwen2.5-1.5b" is a Llama of those shapes: without Qwen's query, key and value biases.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SHAPES = {
    "qwen2.5-1.5b": {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1e6, "max_position_embeddings": 32768,
    },
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "rope_theta": 1e5, "max_position_embeddings": 8192,
    },
}  # fmt: skip
ROWS_AT_ONCE = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    args = parser.parse_args()
    shape = dict(SHAPES[args.shape])
    if args.layers:
        shape["num_hidden_layers"] = args.layers
    args.folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, **shape,
    }  # fmt: skip
    (args.folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(args.folder)
    write_weights(args.folder / "model.safetensors", tensor_shapes(shape))


def tensor_shapes(shape: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Every tensor under Hugging Face's name."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = shape["num_attention_heads"] * shape["head_dim"], shape["num_key_value_heads"] * shape["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape["vocab_size"], hidden)}
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    shapes["model.norm.weight"] = (hidden,)
    return shapes


def write_weights(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """safetensors: the header's length, the header, the tensors one after the other."""
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            if len(shape) == 1:
                file.write(bfloat16(np.ones(shape, np.float32)))
                continue
            for first in range(0, shape[0], ROWS_AT_ONCE):
                rows = min(ROWS_AT_ONCE, shape[0] - first)
                file.write(bfloat16(random.standard_normal((rows, shape[1]), np.float32) * np.float32(shape[1] ** -0.5)))


def bfloat16(values: np.ndarray) -> bytes:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def write_tokenizer(folder: Path) -> None:
    """Bytes, so that any text encodes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
