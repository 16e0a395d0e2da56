"""A workload as a person reads it, and as a program does."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from octavo.bench.sharing import shared_tokens
from octavo.bench.workload import Workload

FIRST, LAST = 20, 5  # rows of a large workload that are shown
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
SEGMENTS = 4  # of a prompt, that its row shows


def print_workload(workload: Workload, *, everything: bool = False, file: TextIO | None = None) -> None:
    """A summary, and a row for each request. Of more than FIRST + LAST rows the middle is left out, unless ``everything``."""
    out = sys.stdout if file is None else file
    for line in _lines(workload, everything):
        print(line, file=out)


def workload_json(workload: Workload) -> dict[str, Any]:
    """The same as JSON holds it, every request included. A segment is [key, tokens]."""
    shared = shared_tokens(workload.requests)
    return {
        "name": workload.name,
        "seed": workload.seed,
        "source": workload.source,
        "notes": list(workload.notes),
        "summary": {
            "requests": len(workload.requests),
            "prompt_tokens": _figures([request.prompt_tokens for request in workload.requests]),
            "output_tokens": _figures([request.output_tokens for request in workload.requests]),
            "shared_prompt_tokens": sum(shared),
            "arrivals": _arrivals(workload),
        },
        "requests": [
            {
                "index": request.index,
                "arrival_s": request.arrival_s,
                "prompt_tokens": request.prompt_tokens,
                "shared_tokens": repeated,
                "output_tokens": request.output_tokens,
                "segments": [[segment.key, segment.tokens] for segment in request.segments],
            }
            for request, repeated in zip(workload.requests, shared, strict=True)
        ],
    }


def _lines(workload: Workload, everything: bool) -> list[str]:
    data = workload_json(workload)
    summary, rows = data["summary"], data["requests"]
    columns = ("mean", *PERCENTILES, "max", "total")
    lines = [f"{workload.name}: {len(rows)} requests, seed {workload.seed}", workload.source, *workload.notes, ""]
    lines.append(f"{'':14}" + "".join(f"{name:>10}" for name in columns))
    lines += [
        f"{name.replace('_', ' '):14}" + "".join(f"{summary[name][column]:>10.0f}" for column in columns)
        for name in ("prompt_tokens", "output_tokens")
    ]
    share = summary["shared_prompt_tokens"] / max(1, summary["prompt_tokens"]["total"])
    lines += [f"shared: {share:.1%} of the prompt tokens begin an earlier prompt, too", _arrival_line(summary["arrivals"]), ""]
    header = f"{'request':>7}{'arrival s':>12}{'prompt':>9}{'shared':>9}{'output':>9}   segments (key:tokens)"
    shown = rows if everything or len(rows) <= FIRST + LAST else [*rows[:FIRST], None, *rows[-LAST:]]
    return [*lines, header, *[_row(row, len(rows)) for row in shown]]


def _row(row: dict[str, Any] | None, count: int) -> str:
    if row is None:
        return f"{'...':>7}   {count - FIRST - LAST} more"
    arrival = "-" if row["arrival_s"] is None else f"{row['arrival_s']:.3f}"
    segments = " ".join(f"{key}:{tokens}" for key, tokens in row["segments"][:SEGMENTS])
    more = len(row["segments"]) - SEGMENTS
    return (
        f"{row['index']:>7}{arrival:>12}{row['prompt_tokens']:>9}{row['shared_tokens']:>9}{row['output_tokens']:>9}   {segments}"
        + (f" and {more} more" if more > 0 else "")
    )


def _figures(values: Sequence[int]) -> dict[str, float]:
    """Zeros for a workload without requests."""
    if not values:
        return dict.fromkeys(("mean", *PERCENTILES, "max", "total"), 0)
    percentiles = {name: float(np.percentile(values, level)) for name, level in PERCENTILES.items()}
    return {"mean": statistics.fmean(values), **percentiles, "max": max(values), "total": sum(values)}


def _arrivals(workload: Workload) -> dict[str, float] | None:
    """Length of the trace, its rate, and the gaps' deviation as a multiple of their mean (1 for a Poisson process)."""
    times = [request.arrival_s for request in workload.requests if request.arrival_s is not None]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    gaps = np.diff(times)
    span = times[-1] - times[0]
    return {"seconds": span, "requests_s": (len(times) - 1) / span, "gap_cv": float(gaps.std() / gaps.mean())}


def _arrival_line(arrivals: dict[str, float] | None) -> str:
    if arrivals is None:
        return "arrivals: decided by the load generator"
    return (
        f"arrivals: over {arrivals['seconds']:.1f} s, {arrivals['requests_s']:.3g} requests/s, "
        f"gaps with a coefficient of variation of {arrivals['gap_cv']:.2f} (1 is Poisson)"
    )
