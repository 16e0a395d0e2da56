"""Marks: what the plot shows, before anything is drawn. One panel for each group, one mark for each row with a latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.report import Json
from octavo.sweep.point import Setup
from octavo.sweep.rows import grouped, setup_of

X_TITLE = "KV memory reserved at the peak of its use, MiB"
Y_TITLE = "p99 ITL, ms"
# Okabe and Ito's colours, which people of every kind of colour vision tell apart; the shapes say the same.
COLOURS = {"contiguous": "#D55E00", "paged": "#0072B2", "hybrid": "#009E73", "virtual": "#CC79A7"}
SHAPES = {"contiguous": "square", "paged": "circle", "hybrid": "diamond", "virtual": "triangle"}
TICKS = 5
LOG_FROM = 4.0  # an axis whose ends differ by more than this factor is logarithmic


@dataclass(frozen=True, slots=True)
class Mark:
    """x: MiB. y, low, high: ms, median and ends of the rounds. label: beside the mark. text: all of it."""

    setup: Setup
    x: float
    y: float
    low: float
    high: float
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    marks: tuple[Mark, ...]

    @property
    def curves(self) -> list[list[Mark]]:
        """Marks that differ in block size alone, in its order."""
        found: dict[tuple[str, str], list[Mark]] = {}
        for mark in self.marks:
            if mark.setup.block_size is not None:
                found.setdefault((mark.setup.layout, mark.setup.attention), []).append(mark)
        return [sorted(curve, key=lambda mark: mark.setup.block_size or 0) for curve in found.values() if len(curve) > 1]


class Axis:
    """From values to 0..1. The ends lie a little beyond the values; a wide range is logarithmic."""

    def __init__(self, values: Sequence[float]):
        low, high = min(values), max(values)
        self.low: float
        self.high: float
        self.log = low > 0 and high / low > LOG_FROM
        if self.log:
            margin = (high / low) ** 0.08
            self.low, self.high = low / margin, high * margin
        else:
            margin = (high - low) * 0.08 or max(abs(high), 1.0) * 0.1
            self.low, self.high = max(0.0, low - margin), high + margin

    def at(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round numbers within."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        else:
            step = 10 ** math.floor(math.log10((self.high - self.low) / TICKS))
            step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= TICKS)
            found = [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [tick for tick in found if self.low <= tick <= self.high]


def panels(rows: Sequence[Json]) -> list[Panel]:
    """Groups without a latency are left out."""
    found = []
    for group, members in grouped(rows).items():
        marks = tuple(_mark(row) for row in members if row["itl_s"] is not None)
        if marks:
            found.append(Panel(group.title, marks))
    return found


def _mark(row: Json) -> Mark:
    setup, latency = setup_of(row), row["itl_s"]["p99"] * 1e3
    low, high = (value * 1e3 for value in row["spread"]["itl_s"]["p99"])
    x = row["kv_reserved"] / 2**20
    label = str(setup.block_size or setup.reserve or setup.layout)
    label += "" if setup.attention == "fused" else f" {setup.attention}"
    return Mark(
        setup, x, latency, low, high, label,
        f"{setup.title}: {x:.0f} MiB, p99 ITL {latency:.3g} ms ({low:.3g} to {high:.3g}), {row['fits']} requests fit",
    )  # fmt: skip
