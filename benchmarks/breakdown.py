"""How far a whole run is from the machine's limit, and what eats the rest.

    python -m benchmarks.breakdown [MODEL] [--suites short,single,mixed,long] [--kv-layout paged ...]

Runs each suite in process on the native runner (random token ids, greedy, no shared prefixes; the first run is not counted) and
splits the wall time. "of limit" is the least time that the machine could take over the time taken: in every step the larger of
reading the weights and the live keys and values once, and of multiplying at the rate of the ISA's product instruction.
The other columns are shares of the wall time and add up to it:

    weights     the limit of the linear layers, the larger of reading their weights and multiplying, each step
    linear +    what the linear layers take beyond that
    keys, values  the limit of attention: the larger of reading keys and values and multiplying
    exp         as many exponentials as attention needs, from registers
    attention + what attention takes beyond those two
    small       norms, rotations, quantisation of activations, embedding, between the operations
    sampling    the choice of tokens from logits
    Python      planning, views, commits, and what the runner does around its native call

"waiting" is counted beside them: the share of threads x native time in which workers had nothing to do.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.kernels.linear import MODELS, compile_for
from tests.native import build

from octavo import LLM, SamplingParams
from octavo.kv.view import KVView
from octavo.runner.base import StepResult
from octavo.runner.native_runner import NativeRunner
from octavo.scheduler.plan import StepPlan

SUITES = {"short": (64, (32, 128), 64), "single": (1, (64, 64), 256), "long": (8, (3000, 6000), 64)}
COLUMNS = ("weights", "linear +", "keys, values", "exp", "attention +", "small", "sampling", "Python")
LINEAR = {"q", "k", "v", "o", "gate", "up", "down", "head"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--suites", default="short,single,mixed,long")
    parser.add_argument("--kv-layout", default="paged")
    parser.add_argument("--quantized-matmul", choices=["int8", "bfloat16"])
    args = parser.parse_args()
    settings = {} if args.quantized_matmul is None else {"quantized_matmul": args.quantized_matmul}
    llm = LLM(args.model, kv_layout=args.kv_layout, runner="native", **settings)
    watched = Watched(llm)
    isa = llm.core.effective["runner"].partition("(")[2].partition(")")[0]
    kind = "BF16" if "BF16" in llm.core.effective["weights"].partition(" as ")[2].partition(" (")[0] else "Q4_0"
    print(f"{args.model}, {isa}, {watched.runner.threads} threads, {kind} products, kv_layout {args.kv_layout}")
    print(f"{'suite':8}{'tok/s':>8}{'of limit':>10}" + "".join(f"{name:>14}" for name in COLUMNS) + f"{'waiting':>10}")
    with tempfile.TemporaryDirectory() as folder:
        limits = Limits(Path(folder), isa, kind, watched.runner.threads)
        for name in args.suites.split(","):
            run(llm, name)
            limits.measure()
            watched.clear()
            begin = time.perf_counter()
            tokens = run(llm, name)
            wall = time.perf_counter() - begin
            limits.measure()
            report(name, tokens, wall, watched, limits)


def requests(suite: str, seed: int = 0) -> list[tuple[list[int], int]]:
    """(prompt, output tokens) of each request."""
    if suite == "mixed":
        work = requests("short", 1)[:32] + requests("long", 2)[:4]
        random.Random(seed).shuffle(work)
        return work
    rng = random.Random(seed)
    count, prompt, output = SUITES[suite]
    return [([rng.randrange(1000, 40000) for _ in range(rng.randint(*prompt))], output) for _ in range(count)]


def run(llm: LLM, suite: str) -> int:
    """Serve the suite; the number of output tokens."""
    work = requests(suite)
    llm.core.kv.reset_prefix()
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in work]
    params = [SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True) for _, output in work]
    outputs = llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    return sum(len(output.outputs[0].token_ids) for output in outputs)


class Watched:
    """Stands in for the engine's runner and adds up what its steps do."""

    def __init__(self, llm: LLM):
        runner = llm.core.runner
        assert isinstance(runner, NativeRunner)
        self.runner = runner
        self._llm = llm
        llm.core.runner = self  # type: ignore[assignment]
        self.clear()

    def clear(self) -> None:
        self.spent: Counter[str] = Counter()
        self.steps: list[tuple[int, int, int, int]] = []  # tokens, sampled rows, keys read, pairs of query and key

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        result = self.runner.execute(plan, view)
        for label, seconds in self.runner.operation_seconds().items():
            parts = {part.rpartition(".")[2] for part in label.split("+")}
            self.spent["linear" if parts & LINEAR else "attention" if "attention" in parts else "small"] += seconds
        native = result.execute_s + result.sample_s
        self.spent["native"] += native
        self.spent["sampling"] += result.sample_s
        self.spent["waiting"] += native * (1 - self.runner.utilisation)
        read = sum(row.start + row.length for row in plan.rows)
        pairs = sum(row.length * (row.start + row.start + row.length + 1) // 2 for row in plan.rows)
        self.steps.append((plan.tokens, len(result.tokens), read, pairs))
        return result

    def describe(self) -> dict[str, str]:
        return self.runner.describe()

    def close(self) -> None:
        self.runner.close()

    @property
    def threads(self) -> int:
        return self.runner.threads


class Limits:
    """Read bandwidth, the rate of products and the rate of exponentials of this machine, all threads together; the means of what
    was measured."""

    def __init__(self, folder: Path, isa: str, kind: str, threads: int):
        self._linear = [compile_for(isa, folder), kind, "1,64", str(threads), "1", *MODELS["135m"].split()]
        exp = Path(__file__).parent / "kernels" / "exp.cpp"
        self._exp = folder / "exp"
        subprocess.run(["g++", *build.COMMON, *build.FLAGS[isa], "-I", build.SOURCES, exp, "-o", self._exp], check=True)
        self._threads = threads
        self._found: Counter[str] = Counter()
        self._count = 0

    def measure(self) -> None:
        lines = subprocess.run(self._linear, check=True, capture_output=True, text=True).stdout.splitlines()
        few, many = (json.loads(line) for line in lines)
        exp = subprocess.run([self._exp], check=True, capture_output=True, text=True).stdout
        self._found["read"] += 1e9 * few["read_gb_s"]
        self._found["products"] += 1e9 * many["register_gflop_s"]
        self._found["exp"] += float(exp) * self._threads
        self._count += 1

    def __getitem__(self, name: str) -> float:
        return self._found[name] / self._count


def report(name: str, tokens: int, wall: float, watched: Watched, limits: Limits) -> None:
    c = watched._llm._checkpoint.config
    layer = (c.heads + 2 * c.kv_heads) * c.head_dim * c.hidden + c.heads * c.head_dim * c.hidden + 3 * c.hidden * c.intermediate
    kv = watched._llm.core.kv.arena.spec.token_bytes
    weights = watched.runner._program.weights.bytes
    linear = attention = least = exp = 0.0
    for computed, sampled, read, pairs in watched.steps:
        flop = 2 * (c.layers * layer * computed + c.vocab * c.hidden * sampled)
        scores = 4 * c.layers * c.heads * c.head_dim * pairs
        linear += max(flop / limits["products"], weights / limits["read"])
        attention += max(scores / limits["products"], kv * read / limits["read"])
        least += max((flop + scores) / limits["products"], (weights + kv * read) / limits["read"])
        exp += c.layers * c.heads * pairs / limits["exp"]
    spent = watched.spent
    native = spent["native"]
    small = native - spent["linear"] - spent["attention"] - spent["sampling"]
    over = spent["attention"] - attention - exp
    shares = (linear, spent["linear"] - linear, attention, exp, over, small, spent["sampling"], wall - native)
    cells = "".join(f"{share / wall:14.1%}" for share in shares)
    print(f"{name:8}{tokens / wall:8.0f}{least / wall:10.1%}{cells}{spent['waiting'] / native:10.1%}", flush=True)


if __name__ == "__main__":
    main()
