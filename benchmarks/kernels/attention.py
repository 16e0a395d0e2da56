"""Attention over one KV cache, contiguous, virtual, paged: nanoseconds per context token by block size, beside machine limits.

    python -m benchmarks.kernels.attention                                   # SmolLM2-135M's shape, all CPUs
    python -m benchmarks.kernels.attention --model 1.5b --contexts 1024,8192 --batches 1,8 --blocks 16,64 --int8
    python -m benchmarks.kernels.attention --busy                            # one thread, its own processor time

Blocks lie in random order over the whole arena: fresh block tables are contiguous by accident. The placements are timed in turn,
round after round, over as many layers as a step of 256 MB reads, so that keys and values come from memory as they do in decoding.
``of read``: bytes of keys and values per second, by what a loop that reads memory in order reaches. ``of registers``: the
multiply-adds that a causal prefill needs per second, by what the ISA's product instruction reaches on registers alone.
``virtual`` is contiguous over small pages of a file; ask for ``--huge-pages`` to compare with contiguous as the engine has it.
``/ contiguous`` within the spread printed beside it is no difference.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from tests.native import build

VIRTUAL = -1  # in place of a block size

# Query heads, kv heads, head_dim.
MODELS = {"135m": (9, 3, 64), "1.5b": (12, 2, 128)}


def compile_for(isa: str, folder: Path) -> Path:
    """The timing program, built for one instruction set."""
    target = folder / "attention"
    sources = [Path(__file__).with_suffix(".cpp"), build.SOURCES / "attention.cpp", build.SOURCES / "attention_plan.cpp"]
    subprocess.run(["g++", *build.COMMON, *build.FLAGS[isa], *sources, "-o", target], check=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="135m")
    parser.add_argument("--what", choices=["decode", "prefill", "all"], default="all")
    parser.add_argument("--contexts", default="128,512,1024,4096,8192", help="tokens")
    parser.add_argument("--batches", default="1,8,64", help="sequences of a decoding step")
    parser.add_argument(
        "--blocks", default="1,2,4,8,16,32,64,128,256", help="block sizes; contiguous and virtual are always timed beside them"
    )
    parser.add_argument("--int8", action="store_true", help="int8 keys and values")
    parser.add_argument("--huge-pages", action="store_true", help="ask for huge pages for keys and values")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--busy", action="store_true", help="the machine is shared: time one thread by its own processor time")
    parser.add_argument("--isa", choices=build.FLAGS, default=[isa for isa in build.available() if "emulated" not in isa][-1])
    args = parser.parse_args()
    heads, kv_heads, head_dim = MODELS[args.model]
    threads = 1 if args.busy else args.threads
    print(f"{args.model}: {heads} query heads, {kv_heads} kv heads of {head_dim}, {'int8' if args.int8 else 'bf16'}, ", end="")
    print(f"{args.isa}, {threads} threads{', processor time' if args.busy else ''}")
    print(f"{'':8}{'context':>8}{'batch':>6}{'block':>11}{'ns/token':>10}{'of limit':>18}{'/ contiguous':>20}")
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "what": args.what,
            "contexts": args.contexts,
            "batches": args.batches,
            "runs": f"0,{VIRTUAL},{args.blocks}",
            "heads": heads,
            "kv-heads": kv_heads,
            "head-dim": head_dim,
            "int8": int(args.int8),
            "huge": int(args.huge_pages),
            "threads": threads,
            "rounds": args.rounds,
            "processor-time": int(args.busy),
        }
        command = [
            compile_for(args.isa, Path(folder)),
            *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            report(process.stdout or ())


def report(lines: object) -> None:
    """One row for each measurement, as they come."""
    limits, contiguous = {"gb_s": 0.0, "gmac_s": 0.0}, 0.0
    for line in lines:  # type: ignore[attr-defined]
        what, *pairs = line.split()
        found = {name: float(value) for name, value in (pair.split("=") for pair in pairs)}
        if what == "limits":
            print(f"{'limits':8}{found['gb_s']:.1f} GB/s read in order, {found['gmac_s']:.0f} GMAC/s from registers")
            limits = found
            continue
        run, unit = int(found["run"]), "gb_s" if what == "decode" else "gmac_s"
        contiguous = contiguous if run else found["ns_token"]
        name = {0: "contiguous", VIRTUAL: "virtual"}.get(run, str(run))
        of_limit = f"{found[unit] / limits[unit]:.0%} of {'read' if what == 'decode' else 'registers'}"
        batch = int(found.get("batch", 1))
        ratio = f"{found['ns_token'] / contiguous:.3f} +- {found['spread']:.3f}"
        row = f"{what:8}{int(found['context']):8}{batch:6}{name:>11}{found['ns_token']:10.2f}{of_limit:>18}{ratio:>20}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
