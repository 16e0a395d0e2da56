"""The gather path: collect every sequence's keys and values into dense padded buffers, then one dense attention over the batch.

This is what frameworks do that have a paged cache but only dense attention. Kept to measure what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, group_rows
from octavo.attention.path import AttentionPath, Prepared


class GatherAttention(AttentionPath):
    """Copies sequence by sequence, layer by layer; rows are padded to the longest of them."""

    name = "gather"

    def describe(self) -> str:
        return "gather (torch: an indexed copy for each sequence, then dense)"

    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        return group_rows(batch, window, float("inf"))

    def collect(self, prepared: Prepared, cache: Tensor, out: Tensor) -> None:
        indices = prepared.key_indices().view(2, prepared.group.rows, -1)
        for row in range(prepared.group.rows):
            for part in range(2):
                self.launches(torch.index_select(cache, 0, indices[part, row], out=out[part, row].view(-1, self.head_dim)))
