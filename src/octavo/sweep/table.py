"""The table for the terminal: memory and latency of every row, group by group."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bench.report import Json
from octavo.bench.table import counted, format_number
from octavo.sweep.rows import grouped, setup_of
from octavo.units import format_bytes

COLUMN = 14


def table_lines(rows: Sequence[Json]) -> list[str]:
    """All groups."""
    lines: list[str] = []
    for group, found in grouped(rows).items():
        rounds = min(len(row["rounds"]) for row in found)
        lines += ["", f"{group.title}; {counted(rounds, 'round')}"]
        lines += _memory(found)
        lines += ["", *_latency(found)]
        if failed := [f"{setup_of(row).title}: {row['failed']}" for row in found if row["failed"]]:
            lines.append(f"Requests that failed, which are in no figure: {', '.join(failed)}")
    return lines[1:]


def _memory(rows: Sequence[Json]) -> list[str]:
    heads = ("reserved", "used", "wasted", "fit", "of max-len", "tables", "launches", "preempted")
    lines = [_head("KV memory at its peak", rows, heads)]
    base = next((row["fits"] for row in rows if row["reserve"] == "max-len"), None)
    for row in rows:
        cells = [format_bytes(row[f"kv_{name}"]) for name in ("reserved", "used", "wasted")]
        cells += [str(row["fits"]), f"{row['fits'] / base:.1f} x" if base else "-", format_bytes(row["table_bytes"])]
        cells += [format_number(row["launches_per_step"]), str(row["preemptions"])]
        lines.append(_line(row, rows, cells))
    return [
        *lines,
        "fit: requests of the suite, in a cycle, admitted at once at final length; of max-len: against contiguous with that.",
    ]


def _latency(rows: Sequence[Json]) -> list[str]:
    heads = ("ITL mean", "p50", "p99", "TTFT mean", "p50", "p99", "tokens/s")
    lines = [_head("ms, +- half the spread", rows, heads)]
    for row in rows:
        cells = []
        for name in ("itl_s", "ttft_s"):
            for statistic in ("mean", "p50", "p99"):
                value = (row[name] or {}).get(statistic)
                cells.append(_with_spread(value, row["spread"][name][statistic], 1e3))
        cells.append(_with_spread(row["output_tok_s"], row["spread"]["output_tok_s"], 1.0))
        lines.append(_line(row, rows, cells))
    return lines


def _with_spread(value: float | None, spread: Sequence[float] | None, scale: float) -> str:
    """ "12.34 +-3%": half of what lies between the lowest and the highest round."""
    if value is None or spread is None:
        return "-"
    text = format_number(value, scale)
    return f"{text} +-{(spread[1] - spread[0]) / 2 / value:.0%}" if value else text


def _width(rows: Sequence[Json]) -> int:
    return max(22, *(len(setup_of(row).title) for row in rows))


def _head(title: str, rows: Sequence[Json], heads: Sequence[str]) -> str:
    return f"{title:{_width(rows)}}" + "".join(f"{head:>{COLUMN}}" for head in heads)


def _line(row: Json, rows: Sequence[Json], cells: Sequence[str]) -> str:
    return f"{setup_of(row).title:{_width(rows)}}" + "".join(f"{cell:>{COLUMN}}" for cell in cells)
