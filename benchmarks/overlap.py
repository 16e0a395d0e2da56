"""What overlapped scheduling hides: on a device that needs no core, and on a model that computes on all of them.

    python benchmarks/overlap.py [MODEL] [--sequences 64] [--device-ms 5,20] [--rounds 5]

First a modelled device that sleeps: the share of scheduling time (planning, views, commits) that fell while a step computed, and
the time of a step with and without overlap. Then MODEL with and without, in turns: output tokens/s, medians with the least and
the greatest, and worker time that scheduling took. On a CPU all cores compute, so there is little to win; this says how much.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from octavo import LLM, SamplingParams
from octavo.config import DEFAULT_MODEL
from octavo.engine.core import EngineCore
from octavo.kv.arena import KVSpec, UnbackedArena
from octavo.kv.factory import build_cache
from octavo.kv.view import KVView
from octavo.observe.clock import RealClock
from octavo.observe.read import read_record
from octavo.observe.recorder import Recorder
from octavo.request import Request
from octavo.runner.base import Runner, StepResult
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.scheduler import Scheduler

STEPS = 300


class SleepingRunner(Runner):
    """Samples token 0 after ``seconds``."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        begin = time.monotonic()
        time.sleep(self.seconds)
        return StepResult(np.zeros(sum(row.logits > 0 for row in plan.rows), np.int32), time.monotonic() - begin, 0.0, 1)

    def describe(self) -> dict[str, str]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--device-ms", default="5,20")
    parser.add_argument("--rounds", type=int, default=5, help="of the model, with and without; 0: only the sleeping device")
    args = parser.parse_args()
    for milliseconds in map(float, args.device_ms.split(",")):
        sleeping(args.sequences, milliseconds / 1e3)
    if args.rounds:
        computing(args.model, args.sequences, args.rounds)


def sleeping(sequences: int, seconds: float) -> None:
    """Print a step's time on the sleeping device, and the share of scheduling that was hidden."""
    found = {}
    for overlapped in (False, True):
        length = STEPS + 64
        kv = build_cache(
            "paged", KVSpec(1, 1, 64, "bfloat16"), capacity=2 * sequences * length, slots=sequences, max_model_len=length,
            block_size=16, prefix_caching=True, make_arena=UnbackedArena,
        )  # fmt: skip
        clock = RealClock()
        scheduler = Scheduler(
            kv, clock, max_num_seqs=sequences, max_num_batched_tokens=4096, max_model_len=length, max_preemptions=4, vocab=1000,
            recorder=Recorder(clock),
        )  # fmt: skip
        core = EngineCore(scheduler, kv, SleepingRunner(seconds), clock, {}, overlapped)
        params = SamplingParams(temperature=0, max_tokens=STEPS)
        for i in range(sequences):
            core.add(Request(id=str(i), prompt=list(range(i, i + 32)), params=params, arrival=clock.now()))
        begin = clock.now()
        while core.has_work:
            core.step()
        wall = clock.now() - begin
        steps = read_record(core.window(steps=STEPS)).steps
        work = sum(step.schedule_s + step.prepare_s + step.commit_s for step in steps)
        found[overlapped] = wall / len(steps), work / len(steps), sum(step.hidden_s for step in steps) / work
        core.close()
    (plain, work, _), (overlapped_s, _, hidden) = found[False], found[True]
    print(
        f"device of {1e3 * seconds:g} ms, {sequences} sequences: scheduling {1e3 * work:.2f} ms a step; a step takes "
        f"{1e3 * plain:.2f} ms, overlapped {1e3 * overlapped_s:.2f} ms; hidden {hidden:.0%} of scheduling"
    )


def computing(model: str, sequences: int, rounds: int) -> None:
    """Print a model's output rate with and without, in turns."""
    engines = {on: LLM(model, async_scheduling=on, max_num_seqs=sequences, enable_prefix_caching=False) for on in (False, True)}
    prompts = [{"prompt_token_ids": list(range(1000 + i, 1064 + i))} for i in range(sequences)]
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds + 1):
        for on, llm in engines.items():
            begin = time.monotonic()
            llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
            rates[on].append(32 * sequences / (time.monotonic() - begin))
    for on, values in rates.items():
        kept = values[1:]  # the first is a warm-up
        print(f"{'overlapped' if on else 'in turn':10} {statistics.median(kept):7.0f} tok/s ({min(kept):.0f}-{max(kept):.0f})")
    steps = read_record(engines[True].core.window(steps=100)).steps
    taken = sum(step.hidden_s for step in steps) / sum(step.end - step.submitted for step in steps)
    print(f"scheduling beside computing: {taken:.1%} of one worker's time")


if __name__ == "__main__":
    main()
