"""What recording every step costs: the Python time of a step with and without it, and a model's steps under load, A B A B.

    python benchmarks/recorder.py [MODEL] [--suite short] [--concurrency 64] [--waves 3] [--steps 100]

First the engine's own Python alone: a runner that computes nothing, ``--concurrency`` sequences that decode; the median of
``--steps`` steps with the recorder, with the recorder writing a file, and without, in turns. Then MODEL: waves of as many of the
suite's prompts, each continued by 128 tokens, without overlapped scheduling, which would hide a part. While all of them decode
the recorder is there for 8 steps and gone for 8, and so on; each 8 are compared with the 8 before, so that a machine that is slow
for a while is slow for both. A difference smaller than twice its standard error is noise, and the last line says so.
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

OUTPUT = 128  # tokens of each request
BLOCK = 8  # steps with, or without, the recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--suite", default="short")
    parser.add_argument("--concurrency", type=int, default=64, help="sequences at once")
    parser.add_argument("--waves", type=int, default=3, help="of so many requests, one after the other")
    parser.add_argument("--steps", type=int, default=100, help="of the runner that computes nothing, in each of 25 turns")
    args = parser.parse_args()
    python_time(args.concurrency, args.steps)
    under_load(args.model, args.suite, args.concurrency, args.waves)


class NoRunner(Runner):
    """Samples token 0, at once."""

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        return StepResult(np.zeros(sum(row.logits > 0 for row in plan.rows), np.int32), 0.0, 0.0, 1)

    def describe(self) -> dict[str, str]:
        return {}


def python_time(sequences: int, steps: int) -> None:
    """Print the median step of an engine that computes nothing, for each arm, and the differences."""
    turns, warm = 25, 5
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


def under_load(model: str, name: str, concurrency: int, waves: int) -> None:
    """Print how much longer steps of a model take that are recorded."""
    checkpoint = open_checkpoint(model)
    core = build_engine(EngineConfig(model=model, max_num_seqs=concurrency, async_scheduling=False), checkpoint)
    workload = suite(name, requests=concurrency * waves, max_model_len=core.scheduler.max_model_len)
    prompts = PromptMaker(workload.seed, vocab_size=checkpoint.config.vocab)
    core.scheduler.recorder.close()
    on, off = Recorder(core.clock), NoRecorder()
    on.begin(core.header())
    changes: list[float] = []  # percent, from a block without the recorder to its neighbour with it
    medians: list[float] = []
    gc.collect()
    gc.freeze()
    for wave in range(waves):
        for request in workload.requests[wave * concurrency : (wave + 1) * concurrency]:
            core.add(ask(f"{wave}-{request.index}", prompts.ids(request), OUTPUT))
        blocks: list[float] = []
        while len(core.scheduler):
            core.scheduler.recorder = off if len(blocks) % 2 else on
            times = []
            while len(core.scheduler) and len(times) < BLOCK:
                seconds = timed(core.step)
                if core.scheduler.planned_decodes == core.scheduler.planned_tokens == concurrency:
                    times.append(seconds)
            if len(times) == BLOCK:
                blocks.append(statistics.fmean(times[1:]))  # the first still feels what came before it
        medians += blocks
        for i, (a, b) in enumerate(pairwise(blocks)):
            recorded, plain = (b, a) if i % 2 else (a, b)
            changes.append(100 * (recorded / plain - 1))
    on.close()
    middle = statistics.median(changes)
    random = np.random.default_rng(0)
    error = float(np.median(random.choice(changes, (2000, len(changes))), axis=1).std())
    verdict = "noise" if abs(middle) < 2 * error else "more than noise"
    print(f"\n{model}, {concurrency} sequences of {workload.name} that decode: {1e3 * statistics.median(medians):.2f} ms a step")
    pairs = f"{len(changes)} pairs of {BLOCK} steps"
    print(f"  recorded against not: {middle:+.2f} %, standard error {error:.2f} % ({pairs}): {verdict}")


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
