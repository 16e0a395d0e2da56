"""The oracle itself, against attention computed by hand."""

from __future__ import annotations

import numpy as np
import torch

from octavo.attention.reference import attention


def test_two_keys_by_hand():
    q = np.array([[[2.0]]])
    keys, values = np.array([[[1.0]], [[3.0]]]), np.array([[[10.0]], [[20.0]]])
    weight = 1 / (1 + np.exp(-0.5 * (6 - 2)))  # softmax of (2, 6) * 0.5 at the second key
    np.testing.assert_allclose(attention(q, keys, values, 0.5), [[[10 + 10 * weight]]])
    np.testing.assert_allclose(attention(q, keys, values, 0.5, window=1), [[[20.0]]])
    capped = 2 * np.tanh(np.array([1.0, 3.0]) / 2)
    weight = 1 / (1 + np.exp(capped[0] - capped[1]))
    np.testing.assert_allclose(attention(q, keys, values, 0.5, softcap=2.0), [[[10 + 10 * weight]]])


def test_against_torch_with_query_groups_and_a_cached_prefix():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(n, heads, 8)) for n, heads in ((5, 6), (12, 2), (12, 2)))
    found = attention(q, k, v, 0.3)
    tensors = [torch.from_numpy(x).transpose(0, 1) for x in (q, k, v)]
    mask = torch.ones(5, 12, dtype=torch.bool).tril(7)
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)
    np.testing.assert_allclose(found, want.transpose(0, 1).numpy(), atol=1e-12)
