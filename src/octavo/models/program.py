"""The decoder as a list of named operations over named buffers.

``models/`` writes a program once, from a ``DecoderConfig``; the torch runner interprets it, the native runner records it,
the simulator costs it. An operation says what is computed, never how: the only order that counts is the list's.

Buffers hold one row per token of the step: ``[tokens, width]``. Weights are canonical names that a ``Checkpoint`` serves;
linear weights have shape ``[out, in]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Embed:
    """out = weight[token] * scale"""

    out: str
    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """residual += delta (through its own RMSNorm first, where ``delta_weight`` is given: sandwich norms);
    out = RMSNorm(residual) * weight, where RMSNorm(x) = x / sqrt(mean(x^2) + eps)."""

    residual: str
    delta: str | None
    out: str
    weight: str
    eps: float
    delta_weight: str | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """out = concat_i(x @ weights[i].T + biases[i]): weights that read the same input are one operation."""

    x: str
    out: str
    weights: tuple[str, ...]
    biases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RotateAndStore:
    """Split ``qkv`` (heads of queries, then keys, then values), normalise query and key heads where weights are given, rotate
    both by their position (``DecoderConfig.rope``: the two halves of a head are a pair), write keys and values of this layer into
    the KV cache, leave the rotated queries in ``q``."""

    layer: int
    qkv: str
    q: str
    q_norm: str | None = None
    k_norm: str | None = None
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """out = softmax(mask(softcap(q @ K.T * scale))) @ V over the layer's cached tokens at or before each query's position, and
    within ``window`` tokens of it (its own included) where that is given. softcap(s) = cap * tanh(s / cap); 0 is none."""

    layer: int
    q: str
    out: str
    scale: float
    window: int | None = None
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """out = activation(x[:, :half]) * x[:, half:]"""

    x: str
    out: str
    activation: str  # "silu" or "gelu_tanh"


@dataclass(frozen=True, slots=True)
class SelectRows:
    """From here on the named buffers hold only the rows whose logits are wanted."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """logits = softcap(x @ weight.T): float32 ``[selected rows, vocabulary]``"""

    x: str
    weight: str
    softcap: float = 0.0


Op = Embed | Norm | Linear | RotateAndStore | Attention | GatedActivation | SelectRows | Head


@dataclass(frozen=True, slots=True)
class Program:
    """A decoder: its operations in order, and the width of each buffer in elements."""

    config: DecoderConfig
    ops: tuple[Op, ...]
    buffers: dict[str, int] = field(default_factory=dict)

    def weight_names(self) -> list[str]:
        """Every weight that the operations read, once, in order of first use."""
        names: dict[str, None] = {}
        for op in self.ops:
            match op:
                case Embed(weight=w) | Head(weight=w):
                    names[w] = None
                case Norm(weight=w, delta_weight=d):
                    names |= dict.fromkeys(n for n in (d, w) if n)
                case Linear(weights=ws, biases=bs):
                    names |= dict.fromkeys((*ws, *bs))
                case RotateAndStore(q_norm=q, k_norm=k):
                    names |= dict.fromkeys(n for n in (q, k) if n)
        return list(names)
