"""Comparison of two results: every difference with its interval, and the word noise where it is no more than that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.bench.metrics import RATES, gaps_of_tokens
from octavo.bench.report import SCHEMA, Json, results_of
from octavo.bench.statistics import Change, Sample, bootstrap, welch
from octavo.bench.table import counted, format_number, title
from octavo.errors import ConfigError

COMPARED = ("mean", "p50", "p90", "p99")
LATENCIES = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2E"}
RATE_NAMES = {"output_tok_s": "output tokens/s", "total_tok_s": "total tokens/s", "requests_s": "requests/s"}
DRIFT = 0.10  # two single runs of one thing on a machine that others use, too, often differ by so much
ROUNDS = "Welch's t test on the logarithms of the rounds' values, 99 % interval"
REQUESTS = (
    f"bootstrap over the requests of one round each, 99 % interval; under {DRIFT:.0%} noise in any case: a single round tells "
    "nothing of how the machine drifts (--repeat does)"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. change: relative, other to base; low and high: its interval, None where there is none. verdict: "better",
    "worse", "noise", or "-" where there is nothing to compare."""

    metric: str
    statistic: str
    base: float | None
    other: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """base, other: what they are. test: how noise was told from difference. notes: what makes the two unlike, or suspect."""

    base: str
    other: str
    test: str
    notes: list[str]
    rows: list[Row]

    def json(self) -> Json:
        """As a program reads it."""
        return asdict(self)


def compare(base: Json, other: Json) -> Comparison:
    """Two results, as ``Result.json`` makes them or a document holds them."""
    rounds = min(len(base["rounds"]), len(other["rounds"]))
    by_rounds = rounds > 1
    samples = None if by_rounds else _samples(base, other)
    rows = [_row(base, other, name, "", _change_of_rounds(base, other, name, ""), by_rounds) for name in RATES]
    for name in LATENCIES:
        for statistic in COMPARED:
            if samples is None:
                change = _change_of_rounds(base, other, name, statistic)
            else:
                a, b, paired = samples[name]
                change = bootstrap(a, b, statistic, paired)
            rows.append(_row(base, other, name, statistic, change, by_rounds))
    return Comparison(_name(base), _name(other), ROUNDS if by_rounds else REQUESTS, _notes(base, other), rows)


def comparison_lines(comparison: Comparison) -> list[str]:
    """As a person reads it."""
    lines = [f"{comparison.other}", f"against {comparison.base}", *comparison.notes, ""]
    lines.append(f"{'':24}{'base':>12}{'other':>12}{'change':>10}   {'99 % interval':<20}")
    for row in comparison.rows:
        name = RATE_NAMES.get(row.metric) or f"{LATENCIES[row.metric]} {row.statistic}, ms"
        scale = 1.0 if row.metric in RATES else 1e3
        change = "" if row.change is None else f"{row.change:+.1%}"
        interval = "" if row.low is None or row.high is None else f"{row.low:+.1%} to {row.high:+.1%}"
        cells = "".join(f"{format_number(value, scale):>12}" for value in (row.base, row.other))
        lines.append(f"{name:24}{cells}{change:>10}   {interval:<20}  {row.verdict}".rstrip())
    return [*lines, "", f"Noise is told by: {comparison.test}."]


def pairs(base: Sequence[Json], other: Sequence[Json]) -> list[tuple[Json, Json]]:
    """Results that are about the same suite: with the same label if both sides have several of a suite."""
    found = []
    for one in other:
        candidates = [b for b in base if b["suite"] == one["suite"]]
        same = [b for b in candidates if b["label"] == one["label"]] or (candidates if len(candidates) == 1 else [])
        found += [(b, one) for b in same[:1]]
    return found


def read_results(path: str | Path) -> list[Json]:
    """The results in a file that ``--json`` wrote. Raises ConfigError."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}.") from None
    try:
        if value["schema"] != SCHEMA:
            raise ConfigError(f"{path} has schema {value['schema']}: {SCHEMA} is accepted.")
        results = [result | {"machine": value["machine"]} for result in results_of(value)]
        for result in results:
            _check(result)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ConfigError(f"{path} is no result of octavo bench.") from None
    return results


def _check(result: Json) -> None:
    """Raises LookupError or TypeError unless what ``compare`` reads is there."""
    result["rounds"][0]
    for name in ("suite", "label", "config", "workload", "requests"):
        result[name]
    for made in result["rounds"]:
        for name in (*RATES, *LATENCIES, "completed", "errors"):
            made["metrics"][name]


def _row(base: Json, other: Json, metric: str, statistic: str, change: Change | None, by_rounds: bool) -> Row:
    before, after = _value(base["metrics"], metric, statistic), _value(other["metrics"], metric, statistic)
    if before is None or after is None or not before > 0:
        return Row(metric, statistic, before, after, None, None, None, "-")
    if change is None:
        change = Change(after / before - 1, None, None)
    beyond = change.low is not None and change.high is not None and not change.low <= 0 <= change.high
    if not by_rounds:
        beyond = (beyond or change.low is None) and abs(change.change) > DRIFT
    better = (change.change > 0) == (metric in RATES)
    verdict = ("better" if better else "worse") if beyond else "noise"
    return Row(metric, statistic, before, after, change.change, change.low, change.high, verdict)


def _value(metrics: Json, metric: str, statistic: str) -> float | None:
    value: Any = metrics[metric]
    figure: float | None = value[statistic] if value is not None and statistic else value
    return figure


def _change_of_rounds(base: Json, other: Json, metric: str, statistic: str) -> Change | None:
    sides = []
    for result in (base, other):
        values = [_value(made["metrics"], metric, statistic) for made in result["rounds"]]
        sides.append([value for value in values if value is not None])
    return welch(*sides)


def _samples(base: Json, other: Json) -> dict[str, tuple[Sample, Sample, bool]]:
    """The first round's values of each metric by request. Paired where both sides completed the same requests."""
    sides = []
    for result in (base, other):
        done = {r["index"]: r for r in result["requests"] if r["error"] is None and r["e2e_s"] is not None and r["round"] == 0}
        sides.append({i: r for i, r in done.items() if r["ended_s"] is not None})
    a, b = sides
    same = {i: r["asked_tokens"] for i, r in a.items()} == {i: r["asked_tokens"] for i, r in b.items()}
    return {
        metric: (*(Sample([_values(side[i], metric) for i in sorted(side)]) for side in (a, b)), same)  # type: ignore[misc]
        for metric in LATENCIES
    }


def _values(request: Json, metric: str) -> list[float]:
    if metric != "itl_s":
        return [] if request[metric] is None else [request[metric]]
    return gaps_of_tokens(request["chunk_s"], request.get("chunk_tokens"))


def _name(result: Json) -> str:
    rounds = len(result["rounds"])
    return f"{title(result)}, {counted(rounds, 'round')}"


def _notes(base: Json, other: Json) -> list[str]:
    notes = []
    for what, name in (("workload", "workloads"), ("load", "loads")):
        a, b = ((r if what == "workload" else r["config"]).get(what) for r in (base, other))
        if a != b:
            notes.append(f"The {name} differ: this is no comparison of like with like.")
    if "machine" in base and "machine" in other and base["machine"] != other["machine"]:
        names = sorted(name for name in base["machine"] if base["machine"][name] != other["machine"].get(name))
        notes.append(f"The machines differ in {', '.join(names)}.")
    for side, result in (("base", base), ("other", other)):
        failed = sum(sum(made["metrics"]["errors"].values()) for made in result["rounds"])
        if failed:
            notes.append(f"In {side}, {counted(failed, 'request')} failed; latencies are those of the others.")
        if any((made["metrics"].get("client") or {}).get("warning") for made in result["rounds"]):
            notes.append(f"In {side}, the client was the bottleneck.")
    return notes
