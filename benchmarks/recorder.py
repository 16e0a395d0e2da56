"""What recording every step costs: the Python time of a step with and without it, and a model's steps under load, A B A B.

    python benchmarks/recorder.py [MODEL] [--suite short] [--requests 128] [--concurrency 64] [--steps 600]

First the engine's own Python alone: a runner that computes nothing, ``--concurrency`` sequences that decode; the median of
``--steps`` steps with the recorder, with the recorder writing a file, and without, in turns. Then MODEL under the suite, in one
engine and without overlapped scheduling, which would hide a part: every other step is recorded. Steps that follow each other and
compute the same number of tokens make a pair, so that a machine that is slow for a while is slow for both of them. A difference
smaller than twice its standard error is noise, and the last line says so.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from octavo.bench.prompts import PromptMaker
from octavo.bench.suites import suite
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.kv.arena import KVSpec, UnbackedArena
from octavo.kv.factory import build_cache
from octavo.kv.view import KVView
from octavo.models.load import open_checkpoint
from octavo.observe.clock import RealClock
from octavo.observe.file import RecordFile
from octavo.observe.recorder import NoRecorder, Recorder
from octavo.request import Request, SamplingParams
from octavo.runner.base import Runner, StepResult
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.scheduler import Scheduler

# The file goes nowhere: what is measured is the engine's part of writing it.
ARMS: dict[str, Callable[[EngineCore], Recorder]] = {
    "on": lambda core: Recorder(core.clock),
    "on, file": lambda core: Recorder(core.clock, RecordFile(os.devnull)),
    "off": lambda core: NoRecorder(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--suite", default="short")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=64, help="sequences at once")
    parser.add_argument("--steps", type=int, default=600, help="of the runner that computes nothing, in each of five turns")
    args = parser.parse_args()
    python_time(args.concurrency, args.steps)
    under_load(args.model, args.suite, args.requests, args.concurrency)


class NoRunner(Runner):
    """Samples token 0, at once."""

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        return StepResult(np.zeros(sum(row.logits > 0 for row in plan.rows), np.int32), 0.0, 0.0, 1)

    def describe(self) -> dict[str, str]:
        return {}


def python_time(sequences: int, steps: int) -> None:
    """Print the median step of an engine that computes nothing, for each arm, and the differences."""
    turns, warm = 5, 20
    length = (turns * len(ARMS) * (steps + warm)) + 64
    capacity = sequences * (length + 64)
    spec = KVSpec(1, 1, 64, "bfloat16")
    kv = build_cache(
        "paged", spec, capacity=capacity, slots=sequences, max_model_len=length, block_size=16, prefix_caching=True,
        make_arena=UnbackedArena,
    )  # fmt: skip
    clock = RealClock()
    scheduler = Scheduler(
        kv, clock, max_num_seqs=sequences, max_num_batched_tokens=2048, max_model_len=length, max_preemptions=4, vocab=1000
    )
    core = EngineCore(scheduler, kv, NoRunner(), clock, {})
    for i in range(sequences):
        core.add(ask(str(i), list(range(i, i + 32)), length - 32))
    medians: dict[str, list[float]] = {name: [] for name in ARMS}
    gc.collect()
    gc.freeze()
    for _ in range(turns):
        for name in ARMS:
            with recording(core, name):
                for _ in range(warm):
                    core.step()
                medians[name].append(statistics.median(timed(core.step) for _ in range(steps)))
    least = {name: min(values) * 1e6 for name, values in medians.items()}
    print(f"Python of a step, {sequences} sequences that decode, no computing, the least of {turns} medians of {steps} steps:")
    for name, value in least.items():
        print(f"  {name:8} {value:7.1f} us   {value - least['off']:+5.1f} us")


def under_load(model: str, name: str, requests: int, concurrency: int) -> None:
    """Print how much longer steps of a model take that are recorded."""
    checkpoint = open_checkpoint(model)
    core = build_engine(EngineConfig(model=model, max_num_seqs=concurrency, async_scheduling=False), checkpoint)
    workload = suite(name, requests=requests, max_model_len=core.scheduler.max_model_len)
    prompts = PromptMaker(workload.seed, vocab_size=checkpoint.config.vocab)
    waiting = [ask(str(r.index), prompts.ids(r), r.output_tokens) for r in workload.requests][::-1]
    core.scheduler.recorder.close()
    on, off = Recorder(core.clock), NoRecorder()
    on.begin(core.header())
    steps: list[tuple[int, float]] = []  # tokens, seconds; the first is recorded, and every other one after it
    tokens = live = 0
    begin = time.perf_counter()
    gc.collect()
    gc.freeze()
    while waiting or live:
        while waiting and live < concurrency:
            core.add(waiting.pop())
            live += 1
        core.scheduler.recorder = off if len(steps) % 2 else on
        start = time.perf_counter()
        updates = core.step().updates
        steps.append((core.scheduler.planned_tokens, time.perf_counter() - start))
        tokens += sum(len(update.tokens) for update in updates)
        live -= sum(update.finish is not None for update in updates)
    wall = time.perf_counter() - begin
    on.close()
    pairs = [(a[1], b[1]) if i % 2 == 0 else (b[1], a[1]) for i, (a, b) in enumerate(pairwise(steps)) if a[0] == b[0]]
    changes = np.array([100 * (recorded / plain - 1) for recorded, plain in pairs])
    random = np.random.default_rng(0)
    medians = np.median(random.choice(changes, (1000, len(changes))), axis=1)
    middle, error = float(np.median(changes)), float(medians.std())
    print(f"\n{model}, {workload.name}: {requests} requests, {concurrency} at once: {tokens / wall:.0f} output tokens/s")
    print(f"  median step {1e3 * statistics.median(s for _, s in steps):.2f} ms, {len(pairs)} pairs of {len(steps)} steps")
    verdict = "noise" if abs(middle) < 2 * error else "more than noise"
    print(f"  recorded against not: {middle:+.2f} % (median of pairs), standard error {error:.2f} %: {verdict}")


@contextmanager
def recording(core: EngineCore, name: str) -> Iterator[None]:
    """The engine has the recorder of this arm."""
    core.scheduler.recorder = recorder = ARMS[name](core)
    recorder.begin(core.header())
    yield
    recorder.close()


def ask(name: str, prompt: list[int], tokens: int) -> Request:
    """A greedy request of exactly so many tokens."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return Request(id=name, prompt=prompt, params=params, arrival=time.monotonic())


def timed(function: Callable[[], object]) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
