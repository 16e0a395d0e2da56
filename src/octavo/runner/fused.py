"""The fused path on torch: all sequences of similar length in one launch, in every layout.

Torch has no kernel that follows a block table, so one indexed copy per layer brings the batch's keys and values together first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, group_rows
from octavo.attention.path import AttentionPath, Prepared

PADDING = 2.0  # a row is padded to less than this many times its own keys or queries
BUDGET = 2**20  # query-key pairs in one launch of several sequences


class FusedAttention(AttentionPath):
    """One copy and one launch for each group of rows of similar length. Keys of a lone row that lie in one run are read in
    place."""

    name = "fused"

    def describe(self) -> str:
        return "fused (torch: indexed copy)"

    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        return group_rows(batch, window, PADDING, BUDGET)

    def fetch(self, prepared: Prepared, cache: Tensor) -> Tensor:
        group, start = prepared.group, prepared.run_start
        if start is not None:
            return cache[:, None, start : start + group.keys]
        space = self.space("kv", (2, group.rows, group.keys, cache.shape[2]))
        self.launches(torch.index_select(cache.flatten(0, 1), 0, prepared.key_indices(), out=space.view(-1, cache.shape[2])))
        return space
