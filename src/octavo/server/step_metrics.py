"""StepMetrics: what the engine's steps were made of, as histograms and counters. Sums up the step records that arrive."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from octavo.observe.record import StepRecord, decode_step

SECONDS = tuple(float(f"{digit}e{power}") for power in range(-6, 2) for digit in (1, 2, 5))  # 1 us to 50 s
LAUNCHES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
SHARES = tuple(tenths / 10 for tenths in range(1, 11))
TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)

PARTS = (
    "schedule",
    "prepare",
    "launch",
    "execute",
    "sample",
    "commit",
    "between",
)  # and "idle": with it, all of the engine's time
KV_PARTS = ("allocate", "extend", "evict", "release", "match", "offer", "compaction", "table", "view")  # of "prepare"
COUNTERS: dict[str, tuple[str, Callable[[StepRecord], float]]] = {
    "engine_launches": ("Calls from Python into compiled computing code.", lambda s: s.launches),
    "engine_attention_launches": (
        "Of the launches, those that compute attention and nothing else.",
        lambda s: s.attention_launches,
    ),
    "attention_seconds": ("Time in attention.", lambda s: s.attention_s),
    "kv_read_bytes": ("Keys and values that attention had to read at least once.", lambda s: s.kv_read_bytes),
    "kv_gather_seconds": ("Time in attention spent collecting keys and values.", lambda s: s.gather_s),
    "kv_gather_bytes": ("Keys and values collected before computing with them.", lambda s: s.gather_bytes),
    "kv_moved_tokens": ("Tokens copied within the KV cache.", lambda s: s.moved_tokens),
    "block_table_written_bytes": ("Bytes of block tables written.", lambda s: s.table_written_bytes),
    "evicted_blocks": ("Cached blocks given up for their room.", lambda s: s.evicted_blocks),
    "recomputed_tokens": ("Tokens computed again after a preemption.", lambda s: s.recomputed_tokens),
    "prefix_cache_rounding": ("Prompt tokens beyond their last whole block, which cannot be found.", lambda s: s.prefix_rounding),
    "worker_busy_seconds": ("Time of all compute threads inside operations, waiting excluded.", lambda s: s.busy_s or 0.0),
    "python_gc_seconds": ("Time in Python's garbage collections, in the engine's process.", lambda s: s.gc_s),
    "python_gc_collections": ("Python's garbage collections in the engine's process.", lambda s: s.gc_count),
}


class _Histogram:
    """Counts of values by the first bound that is not below them. A tenth of the time of prometheus_client's, which locks: here
    one thread observes and collects."""

    def __init__(self, bounds: tuple[float, ...]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)


class StepMetrics(Collector):
    """threads: of the device; set once the engine has said it."""

    def __init__(self, model: str, registry: CollectorRegistry):
        self.threads = 1
        self._model = model
        self._counters = dict.fromkeys(COUNTERS, 0.0)
        self._parts = dict.fromkeys((*PARTS, "idle"), 0.0)
        self._kv_parts = dict.fromkeys(KV_PARTS, 0.0)
        self._table_bytes = 0
        self._part_histograms = {name: _Histogram(SECONDS) for name in PARTS}
        self._step, self._tokens = _Histogram(SECONDS), _Histogram(TOKENS)
        self._launches, self._busy = _Histogram(LAUNCHES), _Histogram(SHARES)
        registry.register(self)

    def take(self, line: bytes) -> None:
        """Sum up one step's record."""
        step = decode_step(line)
        for name, observed in self._part_histograms.items():
            seconds = getattr(step, f"{name}_s")
            observed.observe(seconds)
            self._parts[name] += seconds
        self._parts["idle"] += step.idle_s
        for name in KV_PARTS:
            self._kv_parts[name] += getattr(step, f"{name}_s")
        for name, (_, value) in COUNTERS.items():
            self._counters[name] += value(step)
        self._table_bytes = step.table_bytes
        self._step.observe(step.total_s)
        self._tokens.observe(step.tokens)
        self._launches.observe(step.launches)
        if (share := step.busy_share(self.threads)) is not None:
            self._busy.observe(share)

    def collect(self) -> Iterator[Metric]:
        """All of it, for the registry."""
        busy = "Part of a step's time x threads that was spent inside operations; native runner."
        for name, help, observed in (
            ("step_seconds", "A step, from planning to commit.", self._step),
            ("iteration_tokens_total", "Tokens computed in a step.", self._tokens),
            ("step_launches", "Launches of a step.", self._launches),
            ("step_busy_ratio", busy, self._busy),
        ):
            family = HistogramMetricFamily(f"octavo:{name}", help, labels=["model_name"])
            observed.add_to(family, [self._model])
            yield family
        family = HistogramMetricFamily("octavo:step_part_seconds", "Time in parts of a step.", labels=["model_name", "part"])
        for name, observed in self._part_histograms.items():
            observed.add_to(family, [self._model, name])
        yield family
        for name, help, values in (
            ("engine_step_seconds", "The engine's time, by what its thread did.", self._parts),
            ("kv_prepare_seconds", 'Of part "prepare", what the KV cache did.', self._kv_parts),
        ):
            seconds = CounterMetricFamily(f"octavo:{name}", help, labels=["model_name", "part"])
            for part, value in values.items():
                seconds.add_metric([self._model, part], value)
            yield seconds
        for name, (help, _) in COUNTERS.items():
            counter = CounterMetricFamily(f"octavo:{name}", help, labels=["model_name"])
            counter.add_metric([self._model], self._counters[name])
            yield counter
        for name, help, value in (
            ("worker_threads", "Compute threads: what worker_busy_seconds is measured against.", self.threads),
            ("block_table_bytes", "Bytes of block tables in use, in the latest step.", self._table_bytes),
        ):
            gauge = GaugeMetricFamily(f"octavo:{name}", help, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
