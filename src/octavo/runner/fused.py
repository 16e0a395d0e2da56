"""The fused path on torch: sequences of similar length in one launch, in every layout.

Torch has no kernel that follows a block table, so one indexed copy brings the keys and values of such a launch together first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, group_rows
from octavo.attention.path import AttentionPath, Prepared

PADDING = 2.0  # a row is padded to at most this many times its own keys or queries


class FusedAttention(AttentionPath):
    """One copy and one batch of products for all rows whose lengths are within a factor of two of each other."""

    name = "fused"

    def describe(self) -> str:
        return "fused (torch: indexed copy)"

    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        return group_rows(batch, window, PADDING)

    def collect(self, prepared: Prepared, cache: Tensor, out: Tensor) -> None:
        self.launches(torch.index_select(cache, 0, prepared.key_indices(), out=out.view(-1, self.head_dim)))
