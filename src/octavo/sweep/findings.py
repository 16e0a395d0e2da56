"""Findings: three sentences on a table. Where the knee is, which differences are noise, and what to set."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from octavo.bench.report import Json
from octavo.bench.table import format_number
from octavo.sweep.noise import difference, test_name
from octavo.sweep.point import Group, Setup
from octavo.sweep.rows import grouped, setup_of, values
from octavo.units import format_bytes

SAME_MEMORY = (
    0.05  # peaks of one setup differ by so much from run to run, as requests meet differently, and nobody buys memory by it
)
DEFAULT = Setup("paged", None, 16, "fused")


def findings(rows: Sequence[Json]) -> list[str]:
    """The sentences: knee, noise, advice. ``rows``: as ``make_row`` makes them; empty where no row has a latency."""
    groups = {group: able for group, found in grouped(rows).items() if (able := [row for row in found if _measured(row)])}
    if not groups:
        return []
    advised = _advised(groups)
    several = len(groups) > 1
    knees = "; ".join(f"{_on(group, several)} {_knee(found)}" for group, found in groups.items())
    noise = "; ".join(f"{_on(group, several)} {_noise(found, advised)}" for group, found in groups.items())
    rounds = min(len(row["rounds"]) for found in groups.values() for row in found)
    return [
        f"Knee, p99 ITL against KV memory reserved at the peak: {knees}.",
        f"Noise, by {test_name(rounds)}: {noise}.",
        _advice(groups, advised),
    ]


def pareto(rows: Sequence[Json]) -> list[Json]:
    """From the row that takes least memory upwards, those that have a lower p99 ITL, beyond noise, than all before them."""
    front: list[Json] = []
    for row in sorted(rows, key=lambda row: (row["kv_reserved"], row["itl_s"]["p99"])):
        if not front:
            front.append(row)
        elif difference(_itl(front[-1]), _itl(row)).less:
            if row["kv_reserved"] <= front[-1]["kv_reserved"] * (1 + SAME_MEMORY):
                front.pop()
            front.append(row)
    return front


def knee(front: Sequence[Json]) -> Json | None:
    """Of a Pareto front, the row furthest below the line between its ends, memory and latency both on a logarithmic scale from 0
    to 1 (the idea of Satopaa et al., "Finding a 'Kneedle' in a Haystack", ICDCS Workshops 2011). None where no row lies below."""
    if len(front) < 3:
        return None
    x = [math.log(row["kv_reserved"]) for row in front]
    y = [math.log(row["itl_s"]["p99"]) for row in front]
    depth = [1 - (a - x[0]) / (x[-1] - x[0]) - (b - y[-1]) / (y[0] - y[-1]) for a, b in zip(x, y, strict=True)]
    deepest = max(range(len(front)), key=depth.__getitem__)
    return front[deepest] if depth[deepest] > 0 else None


def best(rows: Sequence[Json]) -> list[Json]:
    """The rows that nothing beats: of those whose throughput is not below the highest beyond noise, those whose p99 ITL is not
    above the lowest beyond noise."""
    most = max(rows, key=lambda row: statistics.median(values(row, "output_tok_s")))
    fast = [row for row in rows if not difference(values(most, "output_tok_s"), values(row, "output_tok_s")).less]
    least = min(fast, key=lambda row: statistics.median(_itl(row)))
    return [row for row in fast if not difference(_itl(least), _itl(row)).more]


def _advised(groups: dict[Group, list[Json]]) -> Setup:
    """Best in most groups; of these the one into which most fits, then the one that takes least memory, then the default."""
    wins: dict[Setup, int] = {}
    room: dict[Setup, float] = {}
    memory: dict[Setup, float] = {}
    for rows in groups.values():
        most = max(row["fits"] for row in rows) or 1
        for row in best(rows):
            setup = setup_of(row)
            wins[setup] = wins.get(setup, 0) + 1
            room[setup] = room.get(setup, 0.0) + row["fits"] / most
            memory[setup] = memory.get(setup, 0.0) + row["kv_reserved"]
    candidates = [setup for setup in wins if wins[setup] == max(wins.values())]
    roomy = [setup for setup in candidates if room[setup] >= max(map(room.__getitem__, candidates)) * (1 - SAME_MEMORY)]
    small = [setup for setup in roomy if memory[setup] <= min(map(memory.__getitem__, roomy)) * (1 + SAME_MEMORY)]
    return DEFAULT if DEFAULT in small else small[0]


def _knee(rows: Sequence[Json]) -> str:
    front = pareto(rows)
    found = knee(front)
    least = front[0]
    if found is not None:
        return f"it is at {_place(found)}, between {_place(least)} and {_place(front[-1])}"
    if len(front) == 1:
        return f"there is none: {_place(least)} takes least memory, and nothing has a lower p99 ITL beyond noise"
    return f"there is none between the ends: {_place(least)} takes least memory, {_place(front[-1])} has the lowest p99 ITL"


def _noise(rows: Sequence[Json], advised: Setup) -> str:
    base = next((row for row in rows if setup_of(row) == advised), None)
    if base is None:
        base = best(rows)[0]
    same, other = [], []
    for row in rows:
        if row is base:
            continue
        found, title = difference(_itl(base), _itl(row)), setup_of(row).title
        if found.beyond:
            other.append((title, found.change))
        else:
            same.append(title)
    name = setup_of(base).title
    parts = []
    if same:
        parts.append(f"the p99 ITL of {_and(same)} differs from that of {name} by no more than noise")
    if other:
        those = _and([f"{title} ({change:+.0%})" for title, change in other])
        parts.append(
            f"that of {those} by more" if same else f"the p99 ITL of {those} differs from that of {name} by more than noise"
        )
    return ", ".join(parts) or f"{name} was measured alone"


def _advice(groups: dict[Group, list[Json]], advised: Setup) -> str:
    parts = []
    several = len(groups) > 1
    for group, rows in groups.items():
        row = next((row for row in rows if setup_of(row) == advised), None)
        if row is None:
            continue
        top = any(setup_of(other) == advised for other in best(rows))
        why = (
            "nothing has more throughput, and of what has as much nothing a lower p99 ITL, beyond noise"
            if top
            else "others are ahead"
        )
        others = [f"{setup_of(r).title} {r['fits']}" for r in rows if r["layout"] == "contiguous" and r is not row]
        beside = f" ({', '.join(others)})" if others else ""
        parts.append(f"{_on(group, several)} {why}, and {row['fits']} requests fit into {format_bytes(group.kv_memory)}{beside}")
    return f"It would set {advised.options}: {'; '.join(parts)}."


def _measured(row: Json) -> bool:
    return bool(_itl(row)) and bool(values(row, "output_tok_s")) and min(_itl(row)) > 0


def _itl(row: Json) -> list[float]:
    return values(row, "itl_s", "p99")


def _place(row: Json) -> str:
    return f"{setup_of(row).title} ({format_bytes(row['kv_reserved'])}, {format_number(row['itl_s']['p99'], 1e3)} ms)"


def _on(group: Group, several: bool) -> str:
    return f"on {group.title}," if several else f"on {group.suite}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
