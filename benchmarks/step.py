"""Where the time of a step goes: every operation of the native step program, at decode batches, contexts and prefill chunks.

    python benchmarks/step.py MODEL [--batch 1,64] [--context 128,4096] [--prefill 512,2048] [--runs 30] [--eager]

Each operation's time is the least of all runs, summed over the layers, so that other programs on the machine show little. "step"
is the least whole step, "median" the usual one, "Python" what the runner adds around the native call. Blocks of 16 tokens lie in
random order.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

from octavo import machine
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.view import KVView
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.runner.native_runner import NativeRunner
from octavo.scheduler.plan import Logits, Row, StepPlan

BLOCK = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--batch", default="1,64", help="sequences that decode at once")
    parser.add_argument("--context", default="128", help="tokens that each of them has")
    parser.add_argument("--prefill", default="2048", help="tokens of a prompt computed in one step")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=len(machine.allowed_cpus()))
    parser.add_argument("--kv-dtype", default="bfloat16")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    batches, contexts, prefills = ([int(n) for n in text.split(",") if n] for text in (args.batch, args.context, args.prefill))
    checkpoint = open_checkpoint(args.model)
    longest = max([c + 1 for c in contexts] + prefills)
    slots = max(batches, default=1)
    runner = NativeRunner(
        build_program(checkpoint.config), checkpoint, dtype="bfloat16", attention="fused", threads=args.threads, slots=slots,
        max_model_len=longest, max_batched_tokens=max([slots, *prefills]), kv_dtype=args.kv_dtype, eager=args.eager,
    )  # fmt: skip
    view = make_view(checkpoint.config, slots, longest, args.kv_dtype)
    for name, value in runner.describe().items():
        print(f"{name}: {value}")
    random = np.random.default_rng(0)
    for batch in batches:
        for context in contexts:
            tokens = random.integers(10, checkpoint.config.vocab, batch).tolist()
            rows = tuple(Row(slot, context, 1, [tokens[slot]], Logits.LAST) for slot in range(batch))
            report(f"decode, {batch} x {context}", runner, view, rows, args.runs)
    for length in prefills:
        tokens = random.integers(10, checkpoint.config.vocab, length).tolist()
        report(f"prefill, {length}", runner, view, (Row(0, 0, length, tokens, Logits.LAST),), max(3, args.runs // 10))


def make_view(config, slots: int, longest: int, kv_dtype: str) -> KVView:
    """Blocks in random order; the memory is written once, so that pages are there."""
    blocks = -(-longest // BLOCK)
    arena = Arena(KVSpec(config.layers, config.kv_heads, config.head_dim, kv_dtype), slots * blocks * BLOCK)
    arena.array()[:] = 0
    places = np.random.default_rng(0).permutation(slots * blocks).astype(np.int32) * BLOCK
    return KVView(arena, places.reshape(slots, blocks), np.full(slots, BLOCK, np.int32))


def report(title: str, runner: NativeRunner, view: KVView, rows: tuple[Row, ...], runs: int) -> None:
    """Run the step and print its table."""
    plan = StepPlan(0, rows)
    least: dict[str, float] = {}
    walls, natives = [], []
    runner.execute(plan, view)
    for _ in range(runs):
        begin = time.perf_counter()
        result = runner.execute(plan, view)
        walls.append(time.perf_counter() - begin)
        natives.append(result.execute_s + result.sample_s)
        for name, seconds in runner.operation_seconds().items():
            least[name] = min(least.get(name, seconds), seconds)
    kinds: dict[str, float] = defaultdict(float)
    for name, seconds in least.items():
        kinds["+".join(part.rpartition(".")[2] for part in name.split("+"))] += seconds
    total = sum(kinds.values())
    print(f"\n{title}: step {min(walls) * 1e3:.3f} ms, median {np.median(walls) * 1e3:.3f} ms; operations {total * 1e3:.3f} ms; "
          f"Python {1e3 * min(w - n for w, n in zip(walls, natives, strict=True)):.3f} ms")  # fmt: skip
    for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
        if seconds > 0:
            print(f"  {kind:12} {seconds * 1e3:9.3f} ms {100 * seconds / total:5.1f} %")


if __name__ == "__main__":
    main()
