"""DecoderConfig: the numbers that tell one decoder from another, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: frequency i is ``theta ** (-2 i / dim) / factor_i``; the angle is position * frequency.

    kind: "default", "linear" (every factor_i is ``factor``) or "llama3" (factors by wavelength: Llama 3.1's rule, below).
    factors: one divisor per frequency where the file states them itself (GGUF's ``rope_freqs.weight``); overrides ``kind``.
    """

    theta: float
    dim: int
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] | None = None

    def inverse_frequencies(self) -> list[float]:
        """``dim / 2`` angular frequencies, in radians per position.

        llama3: wavelengths below original_context / high_freq_factor are kept, those above original_context /
        low_freq_factor are stretched by ``factor``, those between are blended (Llama 3.1 reference code, ``apply_scaling``).
        """
        plain = [self.theta ** (-2.0 * i / self.dim) for i in range(self.dim // 2)]
        if self.factors is not None:
            return [f / d for f, d in zip(plain, self.factors, strict=True)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        return plain

    def _llama3(self, frequency: float) -> float:
        turns = self.original_context * frequency / 6.283185307179586
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - keep) * frequency / self.factor + keep * frequency


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape and constants of a decoder-only transformer.

    windows: per layer, how many tokens a query sees (its own included); None: all before it.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    norm_eps: float
    rope: Rope
    tied_head: bool
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norm: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    windows: tuple[int | None, ...] = ()
    dtype: str = "bfloat16"  # of the checkpoint
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        """The factor on query-key products."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def window(self, layer: int) -> int | None:
        """How many tokens a query of this layer sees; None: all before it."""
        return self.windows[layer] if self.windows else None
