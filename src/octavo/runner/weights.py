"""Weights on torch: converted once from the file's element type, and products in the form that is fastest here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.models.checkpoint import Checkpoint, RawTensor

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROWS_AT_ONCE = 4096  # of a tensor, as float32: bounds what is needed beside the result

Product = Callable[[Tensor], Tensor]


def load(checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype) -> Tensor:
    """The named tensors, one below the other, in ``dtype``. Beside the result, memory for a part of one tensor is needed."""
    raws = [checkpoint.tensor(name) for name in names]
    rows = [raw.shape[0] for raw in raws]
    result = torch.empty((sum(rows), *raws[0].shape[1:]), dtype=dtype)
    for raw, part in zip(raws, torch.split(result, rows), strict=True):
        if len(raw.shape) == 1:
            part.copy_(torch.from_numpy(np.array(raw.to_float32())))
            continue
        for first in range(0, raw.shape[0], ROWS_AT_ONCE):
            values = rows_of(raw, slice(first, first + ROWS_AT_ONCE))
            part[first : first + ROWS_AT_ONCE].copy_(values)
    return result


def rows_of(raw: RawTensor, rows: slice | npt.NDArray[np.int64]) -> Tensor:
    """Some rows of a matrix as float32, a copy."""
    data = np.array(raw.data[rows], order="C")
    return torch.from_numpy(RawTensor(raw.kind, (data.shape[0], *raw.shape[1:]), data).to_float32())


def product(weight: Tensor, bias: Tensor | None) -> tuple[Product, str]:
    """x -> x @ weight.T + bias, and how it is computed.

    oneDNN reorders the weight once into the blocked form that its kernels want; the plain weight is then not kept. Where this
    torch, CPU or element type has no such form it is torch's linear on the plain weight.
    """
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
        pointwise = torch.ops.mkldnn._linear_pointwise.default
        pointwise(weight.new_zeros(1, weight.shape[1]), packed, bias, "none", [], "")
    except (AttributeError, RuntimeError):
        linear = torch.nn.functional.linear
        return lambda x: linear(x, weight, bias), "torch linear"
    return lambda x: pointwise(x, packed, bias, "none", [], ""), "oneDNN, packed"


def pair_order(heads: int, dim: int, rotated: int) -> Tensor:
    """Row order that puts the two numbers that a rotation turns side by side, in each of ``heads`` heads.

    In a checkpoint number i of a head's first ``rotated`` is turned with number i + rotated / 2. Side by side they are one
    complex number, and a rotation is one multiplication. Queries and keys are reordered alike: their products stay the same.
    """
    within = torch.arange(dim)
    within[:rotated] = within[:rotated].view(2, -1).t().reshape(-1)
    return (torch.arange(heads)[:, None] * dim + within).view(-1)
