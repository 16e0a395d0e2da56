"""The per-request path: a launch, or several, for every sequence and layer. Kept to measure what that costs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, single_rows
from octavo.attention.path import AttentionPath, Prepared


class PerRequestAttention(AttentionPath):
    """Each sequence by itself."""

    name = "per-request"

    def describe(self) -> str:
        return "per-request (torch: an indexed copy for each)"

    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        return single_rows(batch, window)

    def collect(self, prepared: Prepared, cache: Tensor, out: Tensor) -> None:
        self.launches(torch.index_select(cache, 0, prepared.key_indices(), out=out.view(-1, self.head_dim)))
