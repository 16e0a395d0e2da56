"""Rows of the table: from the rounds of a point to its figures, each with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from octavo.bench.metrics import STATISTICS
from octavo.bench.report import Json
from octavo.sweep.point import Group, Point, Setup

LATENCIES = ("itl_s", "ttft_s")


def make_row(point: Point, rounds: Sequence[Json], fits: int) -> Json:
    """One row of ``--json``; docs/layouts.md describes its fields. rounds: at least one, as ``Bench.run`` returns them.

    Latencies, throughput and launches are the median of the rounds, memory is the largest of them. ``spread`` has the lowest and
    the highest round of each, ``rounds`` every one. Latencies are None where no request was answered.
    """
    group, setup = point.group, point.setup
    kept = [_round(made) for made in rounds]
    row: Json = {
        "layout": setup.layout,
        "reserve": setup.reserve,
        "block_size": setup.block_size,
        "suite": group.suite,
        "attention": setup.attention,
        "concurrency": group.concurrency,
        **{f"kv_{name}": max(made[f"kv_{name}"] for made in kept) for name in ("reserved", "used", "wasted")},
        "fits": fits,
    }
    for name in LATENCIES:
        row[name] = {s: _median([made[name][s] for made in kept if made[name]]) for s in STATISTICS} if any(
            made[name] for made in kept
        ) else None  # fmt: skip
    row["output_tok_s"] = _median([made["output_tok_s"] for made in kept])
    row["launches_per_step"] = _median([made["launches_per_step"] for made in kept])
    row["kv_memory"] = group.kv_memory
    row["table_bytes"] = max(made["table_bytes"] for made in kept)
    row["preemptions"] = sum(made["metrics"]["preemptions"] or 0 for made in rounds)
    row["failed"] = sum(sum(made["metrics"]["errors"].values()) for made in rounds)
    row["spread"] = {
        **{name: {s: spread(row_values(kept, name, s)) for s in STATISTICS} for name in LATENCIES},
        **{
            name: spread(row_values(kept, name))
            for name in ("output_tok_s", "launches_per_step", "kv_reserved", "kv_used", "kv_wasted")
        },
    }
    row["rounds"] = kept
    return row


def setup_of(row: Json) -> Setup:
    """What the row is about."""
    return Setup(row["layout"], row["reserve"], row["block_size"], row["attention"])


def group_of(row: Json) -> Group:
    """What it can be compared within."""
    return Group(row["suite"], row["concurrency"], row["kv_memory"])


def values(row: Json, name: str, statistic: str = "") -> list[float]:
    """One figure of every round that has it."""
    return row_values(row["rounds"], name, statistic)


def row_values(rounds: Sequence[Json], name: str, statistic: str = "") -> list[float]:
    found: list[Any] = [made[name] if not statistic else (made[name] or {}).get(statistic) for made in rounds]
    return [value for value in found if value is not None]


def spread(found: Sequence[float]) -> list[float] | None:
    """The lowest and the highest; None where there are none."""
    return [min(found), max(found)] if found else None


def grouped(rows: Sequence[Json]) -> dict[Group, list[Json]]:
    """The rows that can be compared with each other, in order."""
    found: dict[Group, list[Json]] = {}
    for row in rows:
        found.setdefault(group_of(row), []).append(row)
    return found


def _round(made: Json) -> Json:
    """What is kept of a round in the row."""
    metrics, steps = made["metrics"], made["steps"]
    return {
        "itl_s": metrics["itl_s"],
        "ttft_s": metrics["ttft_s"],
        "output_tok_s": metrics["output_tok_s"],
        **{name: steps[name] for name in ("launches_per_step", "table_bytes", "kv_reserved", "kv_used", "kv_wasted")},
    }


def _median(found: Sequence[float | None]) -> float | None:
    known = [value for value in found if value is not None]
    return statistics.median(known) if known else None
