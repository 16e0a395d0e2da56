"""Packed linear layers over a model's matrices: GB/s of weights and GFLOP/s, beside what reading and registers alone allow.

    python -m benchmarks.kernels.linear                                    # SmolLM2-135M, bf16 and Q4_0, all CPUs
    python -m benchmarks.kernels.linear --model 1.5b --kinds BF16,Q4_K,Q6_K --rows 1,8,64,256 --isa avx2

``of read`` is the rate of weights divided by that of a loop that only reads the same memory: the limit for few rows.
``of registers`` is the rate of arithmetic divided by that of the ISA's product instruction on registers alone: the limit for
many rows. For quantised kinds that instruction is the integer one, of which scaling and unpacking leave about 60 % at best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.native import build

# Matrices of a decoder as COUNTxNxK: fused query, key, value; output; gate and up (g); down; head (h).
MODELS = {
    "135m": "30x960x576 30x576x576 30x3072x576g 30x576x1536 1x49152x576h",  # SmolLM2-135M
    "1.5b": "8x2048x1536 8x1536x1536 8x17920x1536g 8x1536x8960 1x151936x1536h",  # Qwen2.5-1.5B, 8 of its 28 layers
}


def compile_for(isa: str, folder: Path) -> Path:
    target = folder / "linear"
    sources = [path for path in build.SOURCES.glob("*.cpp") if path.name.startswith(("weight", "quantize", "panel"))]
    sources += [build.SOURCES / "linear.cpp", Path(__file__).with_suffix(".cpp")]
    subprocess.run(["g++", *build.COMMON, *build.FLAGS[isa], "-I", build.SOURCES, *sources, "-o", target], check=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="135m")
    parser.add_argument("--kinds", default="BF16,Q4_0", help="of BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K")
    parser.add_argument("--rows", default="1,8,64,256")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=2, help="for each kind and number of rows")
    parser.add_argument("--isa", choices=build.FLAGS, default=[isa for isa in build.available() if "emulated" not in isa][-1])
    args = parser.parse_args()
    print(f"{args.model}, {args.isa}, {args.threads} threads")
    print(f"{'kind':6}{'rows':>6}{'GB/s':>8}{'of read':>9}{'GFLOP/s':>10}{'of registers':>14}{'turns':>7}")
    with tempfile.TemporaryDirectory() as folder:
        program = compile_for(args.isa, Path(folder))
        for kind in args.kinds.split(","):
            command = [program, kind, args.rows, str(args.threads), str(args.seconds), *MODELS[args.model].split()]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout or ():
                    found = json.loads(line)
                    of_read = found["gb_s"] / found["read_gb_s"]
                    registers = found["register_gflop_s"]
                    of_registers = f"{found['gflop_s'] / registers:14.0%}" if registers else f"{'-':>14}"
                    print(
                        f"{kind:6}{found['rows']:6}{found['gb_s']:8.1f}{of_read:9.0%}{found['gflop_s']:10.0f}{of_registers}{found['turns']:7}"
                    )
            if process.returncode:
                raise SystemExit(f"the benchmark of {kind} ended with {process.returncode}.")


if __name__ == "__main__":
    main()
