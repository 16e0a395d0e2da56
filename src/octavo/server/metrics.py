"""GET /metrics: Prometheus text, under vLLM's names with the prefix ``octavo:``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.engine.messages import Outputs, Ready, Stats
from octavo.request import FinishReason, Request
from octavo.server.step_metrics import TOKENS, StepMetrics

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

GAUGES: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "num_requests_running": ("Requests that run.", lambda s: s.running),
    "num_requests_waiting": ("Requests that wait to be scheduled.", lambda s: s.waiting),
    "kv_cache_usage_perc": (
        "KV cache held by requests, 1 is all of it; what only the prefix cache holds is free.",
        lambda s: s.kv_usage,
    ),
}
COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "num_preemptions": ("Preemptions.", lambda s: s.preemptions),
    "kv_swapped_out_tokens": ("Tokens of preempted sequences copied to the swap space.", lambda s: s.swapped_out),
    "kv_swapped_in_tokens": ("Tokens of preempted sequences copied back from the swap space.", lambda s: s.swapped_in),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda s: s.prefix_queries),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda s: s.prefix_hits),
    "prefix_cache_reusable_tokens": (
        "Prompt tokens that a prefix cache which never forgets would have found, counted with the cache off too.",
        lambda s: s.prefix_reusable,
    ),
    "prefill_tokens_computed": (
        "Prompt tokens computed: without those that the prefix cache held, with those computed again after a preemption.",
        lambda s: s.prompt_tokens,
    ),
    "generation_tokens": ("Tokens generated.", lambda s: s.generation_tokens),
    "engine_steps": ("Steps of the engine.", lambda s: s.steps),
}
KV_STATES = ("used", "reserved", "wasted_inside", "wasted_outside", "shared")
ERROR = "error"  # the reason of a request that the engine failed on; no FinishReason, since no update says it


@dataclass(slots=True)
class _Life:
    """Moments of a request, in seconds of ``time.monotonic()``."""

    arrival: float
    prompt_tokens: int
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    tokens: int = 0
    counted: bool = False  # whether its prompt is in prompt_tokens
    moments: list[float] | None = None  # of each token, where a stop string may end the output before the last one


class Metrics:
    """The counters of one server. Times are taken where tokens reach this process, so a slow reader does not stretch them."""

    def __init__(self, model: str, stats: Callable[[], Stats]):
        """``stats`` gives the engine's latest figures, at the moment of a scrape; see ``at_rest`` for one that is gone."""
        self._registry = CollectorRegistry()
        self._engine = _EngineCollector(model, stats)
        self._registry.register(self._engine)
        self._step_metrics = StepMetrics(model, self._registry)
        self._lives: dict[str, _Life] = {}

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(f"octavo:{name}", help, ["model_name"], registry=self._registry, buckets=buckets)
            return family.labels(model)

        reason = ["model_name", "finished_reason"]
        ended = Counter("octavo:request_success", "Requests that ended, by reason.", reason, registry=self._registry)
        self._ended = {name: ended.labels(model, name) for name in (*(reason.value for reason in FinishReason), ERROR)}
        prompts = "Tokens of the prompts taken up, each prompt counted once and whole."
        self._prompts = Counter("octavo:prompt_tokens", prompts, ["model_name"], registry=self._registry).labels(model)
        self._ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", LONG)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a request.", SHORT)
        self._tpot = histogram("request_time_per_output_token_seconds", "Mean time between a request's tokens.", SHORT)
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the last token.", LONG)
        self._queue = histogram("request_queue_time_seconds", "From arrival until scheduled.", LONG)
        self._prefill = histogram("request_prefill_time_seconds", "From scheduled to the first token.", LONG)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.", LONG)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._generated = histogram("request_generation_tokens", "Tokens generated for a request.", TOKENS)

    def ready(self, ready: Ready) -> None:
        """What the engine said of itself, for ``cache_config_info`` and as a measure of its busy time."""
        self._step_metrics.threads = ready.threads
        self._engine.info = {re.sub(r"\W+", "_", name).lower(): value for name, value in ready.effective.items()}
        self._engine.info |= {
            "block_size": str(ready.block_size),
            "max_model_len": str(ready.max_model_len),
            "kv_capacity_tokens": str(ready.kv_capacity_tokens),
        }

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    # ---- a request's life

    def started(self, request: Request) -> None:
        """A request goes to the engine."""
        moments: list[float] | None = [] if request.params.stop_strings else None
        self._lives[request.id] = _Life(request.arrival, len(request.prompt), moments=moments)

    def on_outputs(self, outputs: Outputs) -> None:
        """A step's news arrived."""
        now = time.monotonic()
        if outputs.step:
            self._step_metrics.take(outputs.step)
        for update in outputs.updates:
            life = self._lives.get(update.id)
            if life is None:
                continue
            self._count_prompt(life)
            if not update.tokens:
                continue
            life.scheduled = life.scheduled or update.scheduled
            if life.tokens:
                gap = (now - life.last_token) / len(update.tokens)
                for _ in update.tokens:
                    self._itl.observe(gap)
            else:
                life.first_token = now
                self._ttft.observe(now - life.arrival)
            life.last_token = now
            life.tokens += len(update.tokens)
            if life.moments is not None:
                life.moments += [now] * len(update.tokens)

    def finished(self, request_id: str, reason: str, tokens: int) -> None:
        """A request ended, or its client left. Only the first call for a request counts; durations only if it came to an end.

        tokens: of its output; what was computed behind a stop string is not part of it.
        """
        life = self._lives.pop(request_id, None)
        if life is None:
            return
        self._ended[reason].inc()
        if reason != ERROR:
            self._count_prompt(life)
        if reason in (FinishReason.ABORT, ERROR) or not life.tokens:
            return
        if life.moments and 0 < tokens < life.tokens:
            life.tokens, life.last_token = tokens, life.moments[tokens - 1]
        self._prompt.observe(life.prompt_tokens)
        self._generated.observe(life.tokens)
        self._e2e.observe(life.last_token - life.arrival)
        self._queue.observe(life.scheduled - life.arrival)
        self._prefill.observe(life.first_token - life.scheduled)
        self._decode.observe(life.last_token - life.first_token)
        if life.tokens > 1:
            self._tpot.observe((life.last_token - life.first_token) / (life.tokens - 1))

    def refused(self, request_id: str) -> None:
        """The engine did not take the request."""
        self._lives.pop(request_id, None)

    @property
    def under_way(self) -> int:
        """Requests that were started and have not ended."""
        return len(self._lives)

    def _count_prompt(self, life: _Life) -> None:
        if not life.counted:
            life.counted = True
            self._prompts.inc(life.prompt_tokens)


def at_rest(stats: Stats) -> Stats:
    """The same counters, and every gauge at nothing: all that is left of an engine that is gone."""
    gauges = ("running", "waiting", "kv_usage", *(f"kv_{state}" for state in KV_STATES))
    return msgspec.structs.replace(stats, **dict.fromkeys(gauges, 0))


class _EngineCollector(Collector):
    """The engine's gauges and counters, read when they are asked for."""

    def __init__(self, model: str, stats: Callable[[], Stats]):
        self.info: dict[str, str] = {}
        self._model = model
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats, model = self._stats(), [self._model]
        for name, (help, value) in GAUGES.items():
            gauge = GaugeMetricFamily(f"octavo:{name}", help, labels=["model_name"])
            gauge.add_metric(model, value(stats))
            yield gauge
        tokens = GaugeMetricFamily("octavo:kv_cache_tokens", "Token places of the KV cache.", labels=["model_name", "state"])
        for state in KV_STATES:
            tokens.add_metric([*model, state], getattr(stats, f"kv_{state}"))
        yield tokens
        for name, help, states in (
            (
                "kv_cache_bytes",
                "Bytes of the KV cache: held by requests, of these with computed tokens, and of no use.",
                stats.kv_bytes(),
            ),
            ("kv_cache_peak_bytes", "The same at their peaks since start, each by itself.", stats.kv_peak_bytes()),
        ):
            memory = GaugeMetricFamily(f"octavo:{name}", help, labels=["model_name", "state"])
            for state, count in states.items():
                memory.add_metric([*model, state], count)
            yield memory
        for name, (help, value) in COUNTERS.items():
            counter = CounterMetricFamily(f"octavo:{name}", help, labels=["model_name"])
            counter.add_metric(model, value(stats))
            yield counter
        info = GaugeMetricFamily("octavo:cache_config_info", "The effective configuration.", labels=list(self.info))
        info.add_metric(list(self.info.values()), 1)
        yield info
