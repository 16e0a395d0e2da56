"""What the load generator adds: with 500 streams from a server that computes nothing, how much later is each token seen?

    python benchmarks/client_cost.py [--streams 500] [--itl 0.05] [--tokens 100] [--rounds 3] [--vllm PYTHON --tokenizer FOLDER]

Server and client run on one CPU each where there are two. Both read the same clock, so the added latency of a token is the moment
in the client's record less the moment at which the server wrote it: the way through the kernel and the client's own work. With
--vllm (the interpreter of a venv that has vLLM) `vllm bench serve` is measured on the same server, from the details it saves.

Once the server's writes are spread evenly over time, and once all streams are written together, as a server writes the tokens of
one batch: then a token waits in the client for those of the streams before it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
from stream_server import MODEL, started

from octavo.bench.client.openai import OpenAITarget, parse_url
from octavo.bench.load import Load
from octavo.bench.run import run_server
from octavo.bench.workload import BenchRequest, Segment

PROMPT = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--ttft", type=float, default=0.2)
    parser.add_argument("--itl", type=float, default=0.05)
    parser.add_argument("--tokens", type=int, default=100, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--tokenizer", metavar="FOLDER")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, {cpus[0]})
    clients = {"octavo bench": octavo, **({"vllm bench serve": vllm} if args.vllm else {})}
    for in_step in (False, True):
        found: dict[str, list[tuple[float, ...]]] = {}
        with started(args.ttft, args.itl, in_step=in_step, cpu=cpus[1] if len(cpus) > 1 else None) as url:
            for number in range(args.rounds):
                for name, measure in clients.items():
                    found.setdefault(name, []).append(measure(url, args))
                    print(f"round {number + 1}, {name}: {words(found[name][-1])}", flush=True)
        how = "written together" if in_step else "spread evenly"
        print(f"{args.streams} streams, {args.streams / args.itl:.0f} tokens/s, {how}; medians of {args.rounds} rounds")
        for name, rounds in found.items():
            print(f"  {name:18} {words(tuple(statistics.median(values) for values in zip(*rounds, strict=True)))}")
        print(flush=True)


def words(figures: tuple[float, ...]) -> str:
    p50, p99, largest, cpu = figures
    used = "" if np.isnan(cpu) else f"; {cpu * 1e6:.1f} us of CPU for a token"
    return f"added latency p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, max {largest * 1e3:.1f} ms{used}"


def octavo(url: str, args: argparse.Namespace) -> tuple[float, ...]:
    reset(url)
    address = parse_url(url, "completions")
    target = OpenAITarget(address, MODEL, lambda request: [1] * PROMPT, timeout_s=600)
    requests = [BenchRequest(i, (Segment(i, PROMPT),), args.tokens) for i in range(args.streams)]
    before = os.times()
    run = run_server(address, target, requests, Load(concurrency=args.streams, warmup=args.streams), show=False)
    after = os.times()
    # The warm-up streams, too, up to 16 tokens each.
    tokens = args.streams * (args.tokens + min(16, args.tokens))
    cpu = (after.user + after.system - before.user - before.system) / tokens
    written = log(url)
    seen = {record.index: record.moments for record in run.records}
    return *delays({name: seen[int(name.rpartition("-")[2])] for name in written if "--" not in name}, written), cpu


def vllm(url: str, args: argparse.Namespace) -> tuple[float, ...]:
    reset(url)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            args.vllm, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", url,
            "--endpoint", "/v1/completions", "--model", MODEL, "--tokenizer", args.tokenizer, "--dataset-name", "random",
            "--random-input-len", f"{PROMPT}", "--random-output-len", f"{args.tokens}", "--num-prompts", f"{args.streams}",
            "--max-concurrency", f"{args.streams}", "--ignore-eos", "--disable-tqdm", "--request-id-prefix", "vllm-",
            "--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "out.json",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"VLLM_TARGET_DEVICE": "cpu"})
        details = json.loads(Path(folder, "out.json").read_text())
    seen = {}
    for i, (start, ttft, gaps) in enumerate(zip(details["start_times"], details["ttfts"], details["itls"], strict=True)):
        seen[f"vllm-{i}"] = (start + np.cumsum([ttft, *gaps])).tolist()
    return *delays(seen, log(url)), float("nan")


def delays(seen: dict[str, list[float]], written: dict[str, list[float]]) -> tuple[float, float, float]:
    """p50, p99 and the largest of all tokens."""
    added = np.concatenate([np.array(moments) - np.array(written[name]) for name, moments in seen.items()])
    assert (added > -0.001).all(), "a token was seen before it was written: the clocks differ"
    return float(np.percentile(added, 50)), float(np.percentile(added, 99)), float(added.max())


def reset(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url + "/reset", method="POST")).read()


def log(url: str) -> dict[str, list[float]]:
    return json.loads(urllib.request.urlopen(url + "/log").read())


if __name__ == "__main__":
    main()
