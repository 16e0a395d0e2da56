"""The gather path: collect every sequence's keys and values into dense padded buffers, then one dense attention over the batch.

This is what frameworks do that have a paged cache but only dense attention. Kept to measure what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, group_rows
from octavo.attention.path import AttentionPath, Prepared

BUDGET = 2**20  # query-key pairs in one padded batch: bounds the buffers where contexts are long


class GatherAttention(AttentionPath):
    """Copies sequence by sequence, layer by layer; sequences of one token are padded to the longest of them."""

    name = "gather"

    def describe(self) -> str:
        return "gather (a copy per sequence and layer, then dense)"

    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        return group_rows(batch, window, float("inf"), BUDGET)

    def fetch(self, prepared: Prepared, cache: Tensor) -> Tensor:
        group, launches = prepared.group, self.launches
        space = self.space("kv", (2, group.rows, group.keys, cache.shape[2]))
        flat = cache.flatten(0, 1)
        indices = prepared.key_indices().view(2, group.rows, group.keys)
        for row in range(group.rows):
            for part in range(2):
                launches(torch.index_select(flat, 0, indices[part, row], out=space[part, row]))
        return space
