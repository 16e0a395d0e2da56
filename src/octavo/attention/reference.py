"""Attention as its definition says it, one query and head at a time, in float64. Slow: the other paths are tested against it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def attention(q: Floats, keys: Floats, values: Floats, scale: float, window: int | None = None, softcap: float = 0.0) -> Floats:
    """out ``[queries, heads, dim]`` of one sequence.

    q:            ``[queries, heads, dim]``: of the sequence's last tokens.
    keys, values: ``[tokens, kv_heads, dim]``: of all its tokens, in order; query head h reads head ``h * kv_heads // heads``.
    scale, window, softcap: as in ``models.program.Attention``.
    """
    queries, heads, _ = q.shape
    tokens, kv_heads, _ = keys.shape
    out = np.empty_like(q, dtype=np.float64)
    for i in range(queries):
        last = tokens - queries + i
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(heads):
            kv_head = head * kv_heads // heads
            scores = keys[first : last + 1, kv_head].astype(np.float64) @ q[i, head].astype(np.float64) * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ values[first : last + 1, kv_head].astype(np.float64)
    return out
