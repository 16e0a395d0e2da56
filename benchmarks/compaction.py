"""What joining holes costs in the contiguous layout, one pause against slices between steps, on a load of short and long
requests; and what copying a prefix costs beside computing it.

    python benchmarks/compaction.py                     # smollm2-135m, 512 MiB of KV memory, the suite "bimodal"
    python benchmarks/compaction.py --kv-memory 4GiB --suite mixed --requests 2000
    python benchmarks/compaction.py --busy              # on a machine that is shared: one thread, its own processor time
    python benchmarks/compaction.py --model ~/models/Llama-3.2-1B-Instruct --slices 1,4,16

The scheduler, the KV cache and the kernel that copies are the engine's own, and the memory is real. The decoder is left out: a
step carries out its moves and "samples" a token for each row, so that thousands of steps take seconds, and nothing but the copies
is timed. Requests are there all at once: the memory is always full. "pause" in the table is the time that a step waits for
compaction: the copies that are due, one call into the library on all threads, and the decision what to move.

Every run of a load makes the same moves in the same steps, so each step's time is the least of all runs, without what other
programs on the machine took from one of them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import numpy as np

from octavo import machine
from octavo.bench.suites import SUITES, suite
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.compaction import SLICE_BYTES
from octavo.kv.factory import build_cache
from octavo.kv.view import KVView, Move
from octavo.models.checkpoint import Checkpoint
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.observe.clock import RealClock
from octavo.request import Request, SamplingParams
from octavo.runner.base import StepResult
from octavo.runner.native_runner import NativeRunner
from octavo.scheduler.plan import Logits, Row, StepPlan
from octavo.scheduler.scheduler import Scheduler
from octavo.units import format_bytes, parse_bytes

MIB = 2**20
SLOTS = 64
now = time.perf_counter


@dataclass
class Outcome:
    """One run of the load."""

    steps: int = 0
    tokens: int = 0
    moved: list[int] = field(default_factory=list)  # tokens, of each step that moved any
    pauses: list[float] = field(default_factory=list)  # seconds, of the same steps
    outside: float = 0.0  # mean share of the capacity that is free and out of reach
    running: float = 0.0  # mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kv-memory", default="512MiB")
    parser.add_argument("--suite", choices=SUITES, default="bimodal")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--reserve", choices=["request", "grow"], default="request")
    parser.add_argument("--slices", default="2,4,8,16", help="MiB that an incremental compaction copies before a step")
    parser.add_argument("--prefixes", default="16,64,256,1024", help="tokens of prefixes to copy and to compute")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="the machine is shared: time one thread by its own processor time")
    parser.add_argument("--threads", type=int, default=len(machine.allowed_cpus()))
    args = parser.parse_args()
    global now
    if args.busy:
        args.threads, now = 1, time.thread_time
    checkpoint = open_checkpoint(args.model)
    model, memory = checkpoint.config, parse_bytes("kv_memory", args.kv_memory)
    spec = KVSpec(model.layers, model.kv_heads, model.head_dim, "bfloat16")
    prefixes = [int(n) for n in args.prefixes.split(",") if n]
    longest = min(model.context, memory // spec.token_bytes)
    runner = NativeRunner(
        build_program(model), checkpoint, dtype="bfloat16", attention="fused", threads=args.threads, slots=SLOTS,
        max_model_len=longest, max_batched_tokens=max([SLOTS, *prefixes]),
        widen=checkpoint.quantized_matmul == "bfloat16",
    )  # fmt: skip
    arena = Arena(spec, memory // spec.token_bytes)
    arena.array()[:] = 0  # pages are there before anything is timed
    print(f"{args.model}: {spec.token_bytes} bytes a token, {format_bytes(memory)} of KV memory, {args.threads} threads", end="")
    print(", processor time" if args.busy else "")
    rates(runner, arena, [float(n) for n in args.slices.split(",")])
    print(f"\n{args.suite}, {args.requests} requests, reserve {args.reserve}")
    print(f"{'compaction':>18}{'steps':>8}{'compacting':>12}{'MiB copied':>12}{'pause p50':>11}{'p99':>9}{'worst':>9} ms", end="")
    print(f"{'out of reach':>14}{'running':>9}")
    row("none", least(args, runner, arena, longest, None, 0), spec.token_bytes)
    row("pause", least(args, runner, arena, longest, "pause", 0), spec.token_bytes)
    for size in args.slices.split(","):
        outcome = least(args, runner, arena, longest, "incremental", int(float(size) * MIB))
        row(f"{size} MiB a step{' *' if float(size) * MIB == SLICE_BYTES else ''}", outcome, spec.token_bytes)
    print("  * octavo's own")
    if prefixes:
        break_even(runner, checkpoint, arena, prefixes)


def copy_seconds(runner: NativeRunner, arena: Arena, moves: tuple[Move, ...]) -> float:
    """Time of a step that does nothing else, seen from Python."""
    table = np.zeros((SLOTS, 1), np.int32)
    view = KVView(arena, table, np.ones(SLOTS, np.int32), moves)
    begin = now()
    runner.execute(StepPlan(0, ()), view)
    return now() - begin


def rates(runner: NativeRunner, arena: Arena, sizes: list[float]) -> None:
    """A slice that slides by a third of itself, from places all over the arena: nothing of it is in a processor's cache."""
    random = np.random.default_rng(0)
    for size in sizes:
        tokens = max(1, int(size * MIB) // arena.spec.token_bytes)
        times = []
        for _ in range(100):
            start = int(random.integers(tokens, arena.tokens - tokens))
            times.append(copy_seconds(runner, arena, (Move(start, start - max(1, tokens // 3), tokens),)))
        low, high = np.quantile(times, [0.5, 0.99]) * 1e3
        rate = tokens * arena.spec.token_bytes / (low / 1e3) / 1e9
        print(f"a slice of {size:g} MiB: {low:.2f} ms, p99 {high:.2f} ms ({rate:.1f} GB/s)")


def least(
    args: argparse.Namespace, runner: NativeRunner, arena: Arena, longest: int, compaction: str | None, size: int
) -> Outcome:
    """All runs of the load as one."""
    runs = [load(args, runner, arena, longest, compaction, size) for _ in range(args.runs)]
    assert all(run.moved == runs[0].moved for run in runs), "the same load made other moves"
    runs[0].pauses = [min(times) for times in zip(*(run.pauses for run in runs), strict=True)]
    return runs[0]


def load(
    args: argparse.Namespace, runner: NativeRunner, arena: Arena, longest: int, compaction: str | None, size: int
) -> Outcome:
    """All requests of the suite. compaction None: holes stay as they are."""
    kv = build_cache(
        "contiguous", arena.spec, capacity=arena.tokens, slots=SLOTS, max_model_len=longest, block_size=16,
        contiguous_reserve=args.reserve, compaction=compaction or "pause", compaction_slice=size, prefix_caching=False,
        make_arena=lambda spec, tokens: arena,
    )  # fmt: skip
    if compaction is None:
        kv.layout.make_room = lambda length, limit: False  # type: ignore[method-assign]
    scheduler = Scheduler(
        kv, RealClock(), max_num_seqs=SLOTS, max_num_batched_tokens=2048, max_model_len=longest, max_preemptions=4, vocab=2
    )
    for i, each in enumerate(suite(args.suite, requests=args.requests, max_model_len=longest).requests):
        params = SamplingParams(temperature=0, max_tokens=each.output_tokens, ignore_eos=True)
        scheduler.add(Request(id=str(i), prompt=[0] * each.prompt_tokens, params=params, arrival=0.0))
    outcome = Outcome()
    outside = running = 0
    while len(scheduler):
        plan, view, decided = planned(scheduler, kv)
        if view.moves:
            outcome.moved.append(sum(move.tokens for move in view.moves))
            outcome.pauses.append(decided + copy_seconds(runner, arena, view.moves))
        usage = kv.usage()
        outside += usage.wasted_outside
        running += len(scheduler.running)
        sampled = sum(row.logits is Logits.LAST for row in plan.rows)
        scheduler.commit(plan, StepResult(np.zeros(sampled, np.int32), 0.0, 0.0, 0))
        outcome.steps += 1
        outcome.tokens += plan.tokens
    outcome.outside, outcome.running = outside / outcome.steps / kv.capacity, running / outcome.steps
    return outcome


def planned(scheduler: Scheduler, kv: KVCache) -> tuple[StepPlan, KVView, float]:
    """The next step, its view, and the seconds that deciding on moves took."""
    kv.work.clear()
    plan = scheduler.plan()
    view = kv.view(plan)
    return plan, view, kv.work.compaction_s


def row(name: str, outcome: Outcome, token_bytes: int) -> None:
    """A line of the table."""
    p50, p99, worst = np.quantile(outcome.pauses, [0.5, 0.99, 1]) * 1e3 if outcome.pauses else (0.0, 0.0, 0.0)
    copied = sum(outcome.moved) * token_bytes / MIB
    print(f"{name:>18}{outcome.steps:8}{len(outcome.pauses):12}{copied:12.0f}{p50:11.2f}{p99:9.2f}{worst:9.2f}   ", end="")
    print(f"{outcome.outside:14.1%}{outcome.running:9.1f}", flush=True)


def break_even(runner: NativeRunner, checkpoint: Checkpoint, arena: Arena, lengths: list[int]) -> None:
    """A prefix copied, and the same number of tokens computed, alone in a step."""
    print("\nprefix tokens   copied ms   computed ms   computed / copied")
    table, run = np.zeros((SLOTS, 1), np.int32), np.full(SLOTS, max(lengths), np.int32)
    random = np.random.default_rng(0)
    for length in lengths:
        copied = min(copy_seconds(runner, arena, (Move(i * length, (i + 10) * length, length),)) for i in range(10))
        tokens = random.integers(10, checkpoint.config.vocab, length).tolist()
        plan = StepPlan(0, (Row(0, 0, length, tokens, Logits.NONE),))
        times = []
        for _ in range(3):
            begin = now()
            runner.execute(plan, KVView(arena, table, run))
            times.append(now() - begin)
        print(f"{length:13}{copied * 1e3:12.3f}{min(times) * 1e3:14.2f}{min(times) / copied:20.0f}", flush=True)


if __name__ == "__main__":
    main()
