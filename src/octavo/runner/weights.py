"""Weights on torch: converted once from the file's element type, and products in the form that is fastest here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.models.checkpoint import Checkpoint, RawTensor

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SAME_BITS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ROWS_AT_ONCE = 4096  # of a quantised tensor, dequantised at once: bounds the float32 copy

Product = Callable[[Tensor], Tensor]


def load(checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype) -> Tensor:
    """The named tensors, one below the other, in ``dtype``. Beside the result, memory for a part of one tensor is needed."""
    raws = [checkpoint.tensor(name) for name in names]
    rows = [raw.shape[0] for raw in raws]
    result = torch.empty((sum(rows), *raws[0].shape[1:]), dtype=dtype)
    for raw, part in zip(raws, torch.split(result, rows), strict=True):
        _convert(raw, part)
    return result


def _convert(raw: RawTensor, out: Tensor) -> None:
    same = _SAME_BITS.get(raw.kind)
    if same is not None:
        # A copy of the bytes: the file's data may be read-only or not aligned, and torch warns of the one and fails on the other.
        step = max(1, ROWS_AT_ONCE * 4096 // max(1, raw.data.shape[1]))
        flat = out.view(raw.data.shape[0], -1)
        for first in range(0, raw.data.shape[0], step):
            part = np.array(raw.data[first : first + step], order="C")
            flat[first : first + step].copy_(torch.from_numpy(part).view(same))
        return
    if len(raw.shape) == 1:
        out.copy_(torch.from_numpy(raw.to_float32()))
        return
    for first in range(0, raw.shape[0], ROWS_AT_ONCE):
        data = raw.data[first : first + ROWS_AT_ONCE]
        values = RawTensor(raw.kind, (data.shape[0], *raw.shape[1:]), data).to_float32()
        out[first : first + ROWS_AT_ONCE].copy_(torch.from_numpy(values))


def product(weight: Tensor, bias: Tensor | None, pack: bool) -> tuple[Product, str]:
    """x -> x @ weight.T + bias, and how it is computed.

    pack: let oneDNN reorder the weight into its own blocked form, once. The plain weight is then not kept. Where this torch, CPU
    or element type has no such form, and without ``pack``, it is torch's linear on the plain weight.
    """
    if pack:
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
            pointwise = torch.ops.mkldnn._linear_pointwise.default
            pointwise(weight.new_zeros(1, weight.shape[1]), packed, bias, "none", [], "")
            return lambda x: pointwise(x, packed, bias, "none", [], ""), "oneDNN, weights packed"
        except (AttributeError, RuntimeError):
            pass
    linear = torch.nn.functional.linear
    return lambda x: linear(x, weight, bias), "torch linear"
