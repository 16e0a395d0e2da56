"""A program's operations as their definitions say them, in float64, for one whole sequence at once. The oracle for what no tiny
Llama has: windows, soft caps, query/key norms, sandwich norms, part-rotated heads."""

from __future__ import annotations

import numpy as np

from octavo.attention.reference import attention
from octavo.models.checkpoint import Checkpoint, RawTensor
from octavo.models.config import DecoderConfig
from octavo.models.decoder import weight_shapes
from octavo.models.program import (
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Norm,
    Program,
    RotateAndStore,
    SelectRows,
)


class RandomCheckpoint(Checkpoint):
    """Random weights for any config, held in memory."""

    tokenizer = chat_template = None

    def __init__(self, config: DecoderConfig, seed: int = 0):
        self.path, self.config = "random", config
        random = np.random.default_rng(seed)
        self.weights = {}
        for name, shape in weight_shapes(config).items():
            spread = 1.5 / shape[1] ** 0.5 if len(shape) == 2 else 0.3
            mean = 1.0 if "norm" in name else 0.0
            self.weights[name] = random.normal(mean, spread, shape).astype(np.float32)

    def tensor(self, name):
        array = self.weights[name]
        return RawTensor("F32", array.shape, array.reshape(array.shape[0] if array.ndim == 2 else 1, -1).view(np.uint8))

    def weight_kinds(self):
        return {"F32": len(self.weights)}

    def drop_pages(self):
        pass

    def generation_defaults(self):
        return {}


def logits(program: Program, weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """float64 ``[tokens, vocabulary]``."""
    config = program.config
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    buffers: dict[str, np.ndarray] = {}
    cache: dict[int, np.ndarray] = {}
    angles = np.outer(np.arange(len(tokens)), config.rope.inverse_frequencies())[:, None]

    def rms(x, weight, eps):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[weight]

    def rotate(x):
        half = config.rope.dim // 2
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
        return np.concatenate((*turned, rest), -1)

    for op in program.ops:
        match op:
            case Embed():
                buffers[op.out] = w[op.weight][tokens] * op.scale
            case Norm():
                if op.delta:
                    delta = buffers[op.delta]
                    buffers[op.residual] = buffers[op.residual] + (
                        rms(delta, op.delta_weight, op.eps) if op.delta_weight else delta
                    )
                buffers[op.out] = rms(buffers[op.residual], op.weight, op.eps)
            case Linear():
                bias = np.concatenate([w[b] for b in op.biases]) if op.biases else 0.0
                buffers[op.out] = buffers[op.x] @ np.concatenate([w[n] for n in op.weights]).T + bias
            case RotateAndStore():
                qkv = buffers[op.qkv].reshape(len(tokens), -1, config.head_dim)
                q, k, v = np.split(qkv, [config.heads, config.heads + config.kv_heads], axis=1)
                q = rms(q, op.q_norm, op.eps) if op.q_norm else q
                k = rms(k, op.k_norm, op.eps) if op.k_norm else k
                buffers[op.q] = rotate(q)
                cache[op.layer] = np.stack((rotate(k), v))
            case Attention():
                keys, values = cache[op.layer]
                out = attention(buffers[op.q], keys, values, op.scale, op.window, op.softcap)
                buffers[op.out] = out.reshape(len(tokens), -1)
            case GatedActivation():
                gate, up = np.split(buffers[op.x], 2, axis=-1)
                gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
                buffers[op.out] = (gelu if op.activation == "gelu_tanh" else gate / (1 + np.exp(-gate))) * up
            case SelectRows():
                pass
            case Head():
                out = buffers[op.x] @ w[op.weight].T
                return op.softcap * np.tanh(out / op.softcap) if op.softcap else out
    raise AssertionError("a program ends with Head")
