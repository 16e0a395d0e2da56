"""What a server's /metrics tell about a run: KV memory at its peak, prefix hits, preemptions. Read before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from octavo.bench.client.openai import ServerAddress
from octavo.errors import TargetError

ENGINES = ("octavo", "vllm")
STATES = ("reserved", "used", "wasted")


@dataclass(frozen=True, slots=True)
class Scrape:
    """``peaks``: bytes of the KV cache at their peaks since the server's start, by state; empty where it does not tell.
    ``counters``: prefix_cache_queries, prefix_cache_hits, num_preemptions, as far as they are there."""

    peaks: dict[str, int]
    counters: dict[str, float]


def scrape(address: ServerAddress) -> Scrape:
    """Empty where the server has no /metrics, or some that cannot be read."""
    try:
        return read_metrics(address.ask("/metrics").decode("utf-8", "replace"))
    except TargetError:
        return Scrape({}, {})


def read_metrics(text: str) -> Scrape:
    """From Prometheus text; several label sets of one name are summed."""
    peaks: dict[str, int] = {}
    counters: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            engine, _, name = family.name.partition(":")
            if engine not in ENGINES:
                continue
            for sample in family.samples:
                if name == "kv_cache_peak_bytes" and sample.labels.get("state") in STATES:
                    state = sample.labels["state"]
                    peaks[state] = peaks.get(state, 0) + int(sample.value)
                elif name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions") and sample.name.endswith("_total"):
                    counters[name] = counters.get(name, 0.0) + sample.value
    except (ValueError, KeyError):
        return Scrape({}, {})
    return Scrape(peaks, counters)
