"""Rows as a sweep makes them, from figures written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.bench.metrics import STATISTICS
from octavo.sweep.point import Group, Point, Setup
from octavo.sweep.rows import make_row

MIXED = Group("mixed", 16, 2**30)


def setup(layout: str, block_size: int | None = None, reserve: str | None = None, attention: str = "fused") -> Setup:
    return Setup(layout, reserve, block_size, attention)


def row(
    what: Setup, *, reserved: int, p99_ms: Sequence[float], tok_s: Sequence[float], fits: int = 10, group: Group = MIXED
) -> dict[str, Any]:
    """One round for each p99. reserved: MiB."""
    rounds = [
        {
            "metrics": {
                "itl_s": dict.fromkeys(STATISTICS, p99 / 1e3),
                "ttft_s": dict.fromkeys(STATISTICS, 0.1),
                "output_tok_s": rate,
                "preemptions": 0,
                "errors": {},
            },
            "steps": {
                "count": 9,
                "launches_per_step": 1.0,
                "table_bytes": 64,
                "kv_reserved": reserved * 2**20,
                "kv_used": reserved * 2**19,
                "kv_wasted": reserved * 2**19,
            },
        }
        for p99, rate in zip(p99_ms, tok_s, strict=True)
    ]
    return make_row(Point(group, what), rounds, fits)
