"""From runs to the JSON document, schema 1. docs/metrics.md describes every field."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from octavo import machine
from octavo.bench.goals import Goals
from octavo.bench.metrics import LATENCIES, RATES, STATISTICS, Metrics, measure
from octavo.bench.record import RequestRecord
from octavo.bench.run import Run
from octavo.bench.workload import Workload
from octavo.version import __version__

SCHEMA = 1
Json = dict[str, Any]


@dataclass(slots=True)
class Result:
    """One workload on one configuration, as often as it was repeated.

    label:  names the configuration among those it is compared with; empty where there is only one.
    config: what ran, for the document.
    """

    workload: Workload
    label: str
    config: Json
    goals: Goals | None = None
    runs: list[Run] = field(default_factory=list)

    def json(self) -> Json:
        """The document of this result, without its head. Not for a result without runs."""
        rounds = [_round_json(run, self.goals) for run in self.runs]
        return {
            "label": self.label,
            "config": self.config,
            "suite": self.workload.name,
            "workload": {
                "requests": len(self.workload.requests),
                "prompt_tokens": sum(r.prompt_tokens for r in self.workload.requests),
                "output_tokens": sum(r.output_tokens for r in self.workload.requests),
                "seed": self.workload.seed,
                "source": self.workload.source,
                "notes": list(self.workload.notes),
            },
            "metrics": _over_rounds([made["metrics"] for made in rounds]),
            "kv": _largest([made["kv"] for made in rounds]),
            "rounds": rounds,
            "requests": [_request_json(i, record, run) for i, run in enumerate(self.runs) for record in run.records],
        }


def document(command: str, results: Sequence[Json]) -> Json:
    """The whole document: one result's fields on the top level, several as ``runs``."""
    head = {"schema": SCHEMA, "command": command, "octavo": __version__, "machine": machine.describe()}
    return head | dict(results[0]) if len(results) == 1 else head | {"runs": list(results)}


def results_of(value: Json) -> list[Json]:
    """The results that a document holds."""
    return list(value["runs"]) if "runs" in value else [value]


def _round_json(run: Run, goals: Goals | None) -> Json:
    kv = None if run.kv is None else asdict(run.kv)
    return {"metrics": _metrics_json(measure(run.records, run.end, goals), run), "kv": kv, "interrupted": run.end is not None}


def _metrics_json(metrics: Metrics, run: Run) -> Json:
    client = asdict(run.client) | {"warning": run.client.warning()}
    prefix = {"cached_tokens": run.cached, "looked_up_tokens": run.looked_up, "preemptions": run.preemptions}
    values = asdict(metrics)
    order = (*LATENCIES, *RATES, "completed", "errors")
    return {name: values.pop(name) for name in order} | {"client": client} | values | prefix


def _over_rounds(rounds: list[Json]) -> Json:
    """Latencies, rates and shares: the median of the rounds. Counts and times: their sum. None where no round has a value."""
    if len(rounds) == 1:
        return rounds[0]
    first = rounds[0]
    made: Json = {}
    for name, value in first.items():
        values = [other[name] for other in rounds]
        if name in LATENCIES:
            made[name] = _median_spread(values)
        elif name in RATES:
            made[name] = _median(values)
        elif name == "client":
            made[name] = {
                "cpu_share": _median([v["cpu_share"] for v in values]),
                "wait_share": _median([v["wait_share"] for v in values]),
                "send_late_s": _median_spread([v["send_late_s"] for v in values]),
                "in_process": value["in_process"],
                "warning": next((v["warning"] for v in values if v["warning"]), None),
            }
        elif name == "goodput":
            made[name] = value and {
                "goals": value["goals"],
                "requests": sum(v["requests"] for v in values),
                "requests_s": _median([v["requests_s"] for v in values]),
                "fraction": _median([v["fraction"] for v in values]),
            }
        elif isinstance(value, dict):
            keys = sorted({key for v in values for key in v})
            made[name] = {key: sum(v.get(key, 0) for v in values) for key in keys}
        else:
            known = [v for v in values if v is not None]
            made[name] = sum(known) if known else None
    return made


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _median_spread(values: Sequence[Json | None]) -> Json | None:
    known = [value for value in values if value is not None]
    return {name: statistics.median(value[name] for value in known) for name in STATISTICS} if known else None


def _largest(peaks: list[Json | None]) -> Json | None:
    known = [peak for peak in peaks if peak is not None]
    if not known:
        return None
    states = {name: max(peak[name] for peak in known) for name in ("reserved", "used", "wasted")}
    return states | {"scope": known[0]["scope"]}


def _request_json(number: int, record: RequestRecord, run: Run) -> Json:
    start = min(r.intended for r in run.records)

    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - start, 6)

    made: Json = {
        "round": number,
        "index": record.index,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "asked_tokens": record.asked_tokens,
        "output_tokens": record.count,
        "intended_s": since(record.intended),
        "sent_s": since(record.sent),
        "ended_s": since(record.ended),
        "ttft_s": _rounded(record.ttft),
        "tpot_s": _rounded(record.tpot),
        "e2e_s": _rounded(record.e2e),
        "finish": record.finish,
        "error": record.error,
        "message": record.message,
        "chunk_s": [round(moment - start, 6) for moment in record.moments],
    }
    if record.stated and any(count != 1 for count in record.tokens):
        made["chunk_tokens"] = record.tokens
    return made


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 6)
