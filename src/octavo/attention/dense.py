"""Attention over keys and values that lie together: two batched products and the softmax between them."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.runner.launches import Launches


def batched(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float,
    launches: Launches,
    out: Tensor,
) -> None:
    """out = softmax(softcap(q @ keys.T * scale) + mask) @ values

    q:            ``[rows, kv_heads, query heads of each, queries, dim]``, contiguous.
    keys, values: ``[rows * kv_heads, keys, dim]``.
    mask:         float, broadcasts to ``[rows, kv_heads, query heads of each, queries, keys]``.
    out:          ``[rows * kv_heads, query heads of each * queries, dim]``.

    The softmax is computed in float32. In a 16-bit type the products of queries and keys would be rounded to that type, which
    costs twice the error of everything else; so what the rounding took off is computed too, by a second product that starts from
    minus the rounded first (torch adds it up in float32 and rounds only the difference). Where a CPU's kernel rounds before it
    subtracts, the difference comes out as 0 and nothing is lost.

    For a few queries over many keys this is several times faster than torch's scaled_dot_product_attention on the CPU, which
    makes a small product for every head of every sequence.
    """
    shape = (*q.shape[:4], keys.shape[1])
    q, transposed = q.view(keys.shape[0], -1, q.shape[-1]), keys.transpose(1, 2)
    rounded = launches(torch.bmm(q, transposed))
    narrow = rounded.dtype != torch.float32
    if softcap:
        scale /= softcap
        scores = launches(rounded.to(torch.float32)) if narrow else rounded
        scores = launches(scores.mul_(scale)).view(shape)
    else:
        scores = launches(torch.add(mask, rounded.view(shape), alpha=scale))
    if narrow:
        rest = launches(torch.baddbmm(rounded, q, transposed, beta=-1))
        launches(scores.add_(rest.view(shape), alpha=scale))
    if softcap:
        launches(scores.tanh_())
        launches(scores.mul_(softcap))
        launches(scores.add_(mask))
    weights = launches(torch.softmax(scores, -1))
    weights = launches(weights.to(values.dtype)) if narrow else weights
    launches(torch.bmm(weights.view(rounded.shape), values, out=out))
