"""The per-request path: a launch, or several, for every sequence and layer. Kept to measure what that costs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, single_rows
from octavo.attention.path import AttentionPath, Prepared


class PerRequestAttention(AttentionPath):
    """Each sequence by itself. Keys that lie in one run are read in place; blocks are collected first."""

    name = "per-request"

    def describe(self) -> str:
        return "per-request"

    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        return single_rows(batch, window)

    def fetch(self, prepared: Prepared, cache: Tensor) -> Tensor:
        group, start = prepared.group, prepared.run_start
        if start is not None:
            return cache[:, None, start : start + group.keys]
        space = self.space("kv", (2, group.keys, cache.shape[2]))
        self.launches(torch.index_select(cache.flatten(0, 1), 0, prepared.key_indices(), out=space.flatten(0, 1)))
        return space[:, None]
