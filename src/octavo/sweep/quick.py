"""How much of a sweep fits into a given time on this machine: ``--quick``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.interrupt import Interrupt
from octavo.bench.load import Load
from octavo.bench.record import RequestRecord
from octavo.bench.report import Json
from octavo.bench.run import WARMUP_PROMPT, run_engine
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.models.checkpoint import Checkpoint
from octavo.sweep.grid import Grid
from octavo.sweep.growth import ENOUGH_S, LEAST_STEPS, WARMUP_STEPS
from octavo.sweep.measure import WARMUP
from octavo.sweep.runners import SharedRunner

PROMPT, BATCH, SHORT, OUTPUT = 512, 8, 64, 16  # of the requests that are timed
# Requests of a suite, and the context that their lengths are made for: from what tells most to the least that tells anything.
AMOUNTS = (
    (48, 8192), (32, 8192), (24, 8192), (16, 8192), (16, 4096),
    (16, 2048), (12, 2048), (8, 2048), (16, 1024), (12, 1024), (8, 1024),
)  # fmt: skip
SETUP_S = 1.0  # to put an engine together, age its memory and let it go
FILL_S = 2.0  # to fill the KV cache of a growth measurement
SHARE = 0.8  # of the time that is planned for: a machine that others use is slower at times


@dataclass(frozen=True, slots=True)
class Speed:
    """prefill_s: seconds of a prompt's token. step_s: of a decode step of BATCH short sequences."""

    prefill_s: float
    step_s: float

    def run_s(self, workload: Workload, concurrency: int) -> float:
        """Seconds that a workload will take, about: its prompts, then as many steps as its longest output has, or all outputs
        have where half of the places are taken in the mean."""
        prompts = sum(request.prompt_tokens for request in workload.requests)
        outputs = [request.output_tokens for request in workload.requests]
        steps = max(max(outputs), 2 * sum(outputs) / min(concurrency, len(outputs)))
        prompts += WARMUP * min(WARMUP_PROMPT, workload.requests[0].prompt_tokens)
        return SETUP_S + prompts * self.prefill_s + steps * self.step_s * max(1.0, min(concurrency, len(outputs)) / BATCH)

    def growth_s(self, contexts: Sequence[int], batches: Sequence[int]) -> float:
        """Seconds that the growth of one setup will take, about: a long context costs what a few steps do."""
        steps = [self.step_s * (1 + context * batch / 2**14) for context in contexts for batch in batches]
        return FILL_S + sum(max(ENOUGH_S, (LEAST_STEPS + WARMUP_STEPS) * step) for step in steps) if steps else 0.0


def time_engine(config: EngineConfig, checkpoint: Checkpoint, runners: SharedRunner, interrupt: Interrupt) -> Speed | None:
    """Time one prompt, then a small batch. None where it was interrupted."""
    core = build_engine(config, checkpoint, runners)
    most = core.scheduler.max_model_len
    prompt, short = min(PROMPT, most // 2), min(SHORT, most // 4)
    output = max(2, min(OUTPUT, most // 4))
    vocab = checkpoint.config.vocab

    def ids(request: BenchRequest) -> list[int]:
        return [(request.index * 7919 + i) % vocab for i in range(request.prompt_tokens)]

    def send(*requests: BenchRequest) -> list[RequestRecord]:
        return run_engine(core, requests, Load(concurrency=BATCH, warmup=1), ids, interrupt=interrupt, show=False).records

    try:
        (first,) = send(BenchRequest(1, (Segment(1, prompt),), 2)) or (None,)
        batch = send(*(BenchRequest(2 + i, (Segment(2 + i, short),), output) for i in range(BATCH)))
    finally:
        core.close()
    if interrupt.wanted or first is None or first.ttft is None:
        return None
    gaps = [(r.moments[-1] - r.moments[0]) / (r.count - 1) for r in batch if r.count > 1]
    return Speed(first.ttft / prompt, statistics.median(gaps))


def choose(
    grid: Grid,
    rounds: int,
    seconds: float,
    speed: Speed,
    growth: tuple[int, Sequence[int], Sequence[int]],
    make: Callable[[str, int, int], Workload],
) -> Json:
    """{"rounds", "requests", "context"}: as many rounds as asked for, or as there is time for, and then the most requests of each
    suite, and the longest, so that all takes no more than SHARE of ``seconds``; the least of all where nothing does.

    Rounds come first: what is noise is told from them. growth: setups whose growth is measured, contexts, batches. make: a
    suite's workload, from its name, its number of requests, and the context that their lengths are made for.
    """
    setups, contexts, batches = growth
    beside = setups * speed.growth_s(contexts, batches)
    for count in range(rounds, 0, -1):
        for requests, context in AMOUNTS:
            workloads = {name: make(name, requests, context) for name in {point.group.suite for point in grid.points}}
            runs = sum(speed.run_s(workloads[p.group.suite], p.group.concurrency) for p in grid.points)
            if count * (beside + runs) <= SHARE * seconds:
                return {"rounds": count, "requests": requests, "context": context}
    return {"rounds": 1, "requests": AMOUNTS[-1][0], "context": AMOUNTS[-1][1]}
