"""The five causes that stack up to the slow configuration. Each can be removed by itself, so there are 2^5 configurations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration.

    layout:     "paged" or "contiguous".
    attention:  "per-request" or "fused".
    eager:      a call for each operation; otherwise for as many as go together.
    block_size: tokens; 0 where the layout has no blocks.
    rebuilt:    block tables are written whole in every step, and the pool is compacted in a pause now and then.
    overlapped: the next step is planned while one computes.
    """

    layout: str
    attention: str
    eager: bool
    block_size: int
    rebuilt: bool
    overlapped: bool


@dataclass(frozen=True, slots=True)
class Cause:
    """name: in results. words: what removing it changes. setting, without: a field of ``Arm`` and its value then."""

    name: str
    words: str
    setting: str
    without: Any


SLOW = Arm("paged", "per-request", eager=True, block_size=8, rebuilt=True, overlapped=False)
CAUSES = (
    Cause("attention", "attention: per request to fused", "attention", "fused"),
    Cause("eager", "calls: one an operation to one a step", "eager", False),
    Cause("block_size", "blocks: 8 to 16 tokens", "block_size", 16),
    Cause("block_management", "block tables: rebuilt to appended to", "rebuilt", False),
    Cause("overlap", "scheduling: in turn to overlapped", "overlapped", True),
)
INDIRECTION = "indirection"
"""What is left between the best paged configuration and contiguous. No cause of the ladder: without it, nothing is paged."""
Removed = frozenset[str]


def arm(removed: Iterable[str]) -> Arm:
    """The slow configuration without these causes, by name; with ``INDIRECTION`` among them, contiguous."""
    names = set(removed)
    made = SLOW
    for cause in CAUSES:
        if cause.name in names:
            made = replace(made, **{cause.setting: cause.without})
    return replace(made, layout="contiguous", block_size=0, rebuilt=False) if INDIRECTION in names else made


def subsets(causes: Iterable[Cause]) -> Iterator[Removed]:
    """Every set of causes that can be removed, the smaller ones first."""
    names = [cause.name for cause in causes]
    for count in range(len(names) + 1):
        yield from (frozenset(chosen) for chosen in combinations(names, count))
