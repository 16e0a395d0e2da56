"""What recording every step costs: Python time of a step with and without it, and the throughput of a model, A B A B.

    python benchmarks/recorder.py [MODEL] [--suite short] [--requests 128] [--concurrency 64] [--rounds 6] [--steps 600]

First the engine's own Python alone: a runner that computes nothing, ``--concurrency`` sequences that decode; the median of
``--steps`` steps with the recorder, with the recorder writing a file, and without, in turns. Then MODEL under the suite, in turns
as well, in one engine: only the recorder changes. A difference smaller than its spread between rounds is noise, and the last line
says so.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

Arms = dict[str, Callable[[EngineCore], Recorder]]
ARMS: Arms = {"on": lambda core: Recorder(core.clock), "off": lambda core: NoRecorder()}
# The file goes nowhere: what is measured is the engine's part of writing it.
FILE: Arms = {"on, file": lambda core: Recorder(core.clock, RecordFile(os.devnull))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--suite", default="short")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=64, help="sequences at once")
    parser.add_argument("--rounds", type=int, default=6, help="of each arm")
    parser.add_argument("--steps", type=int, default=600, help="of the runner that computes nothing, in each of five turns")
    args = parser.parse_args()
    python_time(args.concurrency, args.steps)
    throughput(args.model, args.suite, args.requests, args.concurrency, args.rounds)


class NoRunner(Runner):
    """Samples token 0, at once."""

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        return StepResult(np.zeros(sum(row.logits > 0 for row in plan.rows), np.int32), 0.0, 0.0, 1)

    def describe(self) -> dict[str, str]:
        return {}


def python_time(sequences: int, steps: int) -> None:
    """Print the median step of an engine that computes nothing, for each arm, and the differences."""
    turns, warm = 5, 20
    length = (turns * 3 * (steps + warm)) + 64
    spec = KVSpec(1, 1, 64, "bfloat16")
    capacity = sequences * (length + 64)
    kv = build_cache(
        "paged", spec, capacity=capacity, slots=sequences, max_model_len=length, block_size=16, prefix_caching=True,
        make_arena=UnbackedArena,
    )  # fmt: skip
    clock = RealClock()
    scheduler = Scheduler(
        kv, clock, max_num_seqs=sequences, max_num_batched_tokens=2048, max_model_len=length, max_preemptions=4, vocab=1000
    )
    core = EngineCore(scheduler, kv, NoRunner(), clock, {})
    arms = ARMS | FILE
    for i in range(sequences):
        core.add(ask(str(i), list(range(i, i + 32)), length - 32))
    medians: dict[str, list[float]] = {name: [] for name in arms}
    gc.collect()
    gc.freeze()
    for _ in range(turns):
        for name in arms:
            with recording(core, arms[name]):
                for _ in range(warm):
                    core.step()
                medians[name].append(statistics.median(timed(core.step) for _ in range(steps)))
    least = {name: min(values) * 1e6 for name, values in medians.items()}
    off = least["off"]
    print(f"Python of a step, {sequences} sequences that decode, no computing, the least of {turns} medians of {steps} steps:")
    for name, value in least.items():
        print(f"  {name:8} {value:7.1f} us   {value - off:+5.1f} us")


def throughput(model: str, name: str, requests: int, concurrency: int, rounds: int) -> None:
    """Print output tokens per second of both arms, and the difference with its spread."""
    checkpoint = open_checkpoint(model)
    core = build_engine(EngineConfig(model=model, max_num_seqs=concurrency, enable_prefix_caching=False), checkpoint)
    workload = suite(name, requests=requests, max_model_len=core.scheduler.max_model_len)
    prompts = PromptMaker(workload.seed, vocab_size=checkpoint.config.vocab)
    asked = [(prompts.ids(request), request.output_tokens) for request in workload.requests]
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    serve(core, asked[:concurrency], concurrency)  # warm-up
    gc.collect()
    gc.freeze()
    for turn in range(rounds):
        for arm in reversed(ARMS) if turn % 2 else ARMS:  # A B B A: a drift favours neither
            with recording(core, ARMS[arm]):
                rates[arm].append(serve(core, asked, concurrency))
    print(
        f"\n{model}, {workload.name}: {requests} requests, {concurrency} at once, {rounds} rounds of each arm, output tokens/s:"
    )
    for arm, values in rates.items():
        print(f"  {arm:8} median {statistics.median(values):8.1f}   " + " ".join(f"{value:.1f}" for value in values))
    changes = [100 * (on / off - 1) for on, off in zip(rates["on"], rates["off"], strict=True)]
    middle, spread = statistics.median(changes), statistics.stdev(changes) / len(changes) ** 0.5
    verdict = "noise" if abs(middle) < 2 * spread else "more than noise"
    print(f"  on against off: {middle:+.2f} %, standard error {spread:.2f} %: {verdict}")


@contextmanager
def recording(core: EngineCore, make: Callable[[EngineCore], Recorder]) -> Iterator[None]:
    """The engine has this recorder."""
    core.scheduler.recorder = recorder = make(core)
    recorder.begin(core.header())
    yield
    recorder.close()


def ask(name: str, prompt: list[int], tokens: int) -> Request:
    """A greedy request of exactly so many tokens."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return Request(id=name, prompt=prompt, params=params, arrival=time.monotonic())


def serve(core: EngineCore, asked: list[tuple[list[int], int]], concurrency: int) -> float:
    """Output tokens per second of these requests, ``concurrency`` at a time."""
    waiting = list(enumerate(asked))[::-1]
    live = tokens = 0
    begin = time.perf_counter()
    while waiting or live:
        while waiting and live < concurrency:
            number, (prompt, length) = waiting.pop()
            core.add(ask(f"{begin}-{number}", prompt, length))
            live += 1
        for update in core.step().updates:
            tokens += len(update.tokens)
            live -= update.finish is not None
    return tokens / (time.perf_counter() - begin)


def timed(function: Callable[[], object]) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
