"""octavo bench beside `vllm bench serve` on one server, in turn: throughput, TTFT and TPOT must agree where the definitions do.

    python benchmarks/against_vllm_bench.py --vllm PYTHON --tokenizer FOLDER              # a server with a known schedule
    python benchmarks/against_vllm_bench.py --vllm PYTHON --tokenizer FOLDER --url URL    # any server

Both send --requests requests of --prompt random tokens that ask for --output tokens, --concurrency at once, --rounds times.
PYTHON is the interpreter of a venv with vLLM, FOLDER holds the tokenizer of the model that is served. Prints the medians over the
rounds and how far octavo's lie from vLLM's; exits with 1 if one lies farther than --within.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_server import started

# octavo's name, vLLM's, what turns the former into the unit of the latter, and whether both define it alike.
FIGURES = {
    "output tokens/s": (("output_tok_s", ""), "output_throughput", 1.0, True),
    "total tokens/s": (("total_tok_s", ""), "total_token_throughput", 1.0, True),
    "requests/s": (("requests_s", ""), "request_throughput", 1.0, True),
    "TTFT mean, ms": (("ttft_s", "mean"), "mean_ttft_ms", 1e3, True),
    "TTFT p50, ms": (("ttft_s", "p50"), "median_ttft_ms", 1e3, True),
    "TTFT p99, ms": (("ttft_s", "p99"), "p99_ttft_ms", 1e3, True),
    "TPOT mean, ms": (("tpot_s", "mean"), "mean_tpot_ms", 1e3, True),
    "TPOT p50, ms": (("tpot_s", "p50"), "median_tpot_ms", 1e3, True),
    "TPOT p99, ms": (("tpot_s", "p99"), "p99_tpot_ms", 1e3, True),
    "ICL mean, ms": (("icl_s", "mean"), "mean_itl_ms", 1e3, True),
    "ICL p99, ms": (("icl_s", "p99"), "p99_itl_ms", 1e3, False),
    "E2E p50, ms": (("e2e_s", "p50"), "median_e2el_ms", 1e3, True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PYTHON", required=True)
    parser.add_argument("--tokenizer", metavar="FOLDER", required=True)
    parser.add_argument("--url", help="default: benchmarks/stream_server.py, started for this")
    parser.add_argument(
        "--ttft", type=float, default=1.0, help="seconds, of that server; a client's own milliseconds are in both figures"
    )
    parser.add_argument("--itl", type=float, default=0.02)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--output", type=int, default=64, help="tokens")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.02, help="as a fraction")
    parser.add_argument("--cpu", type=int, help="let both clients use this CPU only")
    args = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {name: {"octavo": [], "vllm": []} for name in FIGURES}
    with server(args) as url:
        model = json.loads(ask(url))["data"][0]["id"]
        for number in range(args.rounds):
            # Who comes first changes, so that what one leaves behind does not always meet the other.
            for client in ("octavo", "vllm") if number % 2 == 0 else ("vllm", "octavo"):
                made = octavo(args, url) if client == "octavo" else vllm(args, url, model, os.getpid() + number)
                for name, (ours, theirs, scale, _) in FIGURES.items():
                    figure = made[ours[0]] if client == "octavo" else made[theirs]
                    if client == "octavo":
                        figure = scale * (figure[ours[1]] if ours[1] else figure)
                    found[name][client].append(figure)
                print(f"round {number + 1}, {client}: {found['output tokens/s'][client][-1]:.1f} output tokens/s", flush=True)
    return report(found, args)


def report(found: dict[str, dict[str, list[float]]], args: argparse.Namespace) -> int:
    load = f"{args.requests} requests, {args.prompt} + {args.output} tokens, {args.concurrency} at once"
    print(f"\n{load}; medians of {args.rounds} rounds")
    print(f"{'':18}{'octavo bench':>14}{'vllm bench':>14}{'difference':>12}")
    far = 0
    for name, sides in found.items():
        ours, theirs = (statistics.median(sides[client]) for client in ("octavo", "vllm"))
        difference = ours / theirs - 1
        alike = FIGURES[name][3]
        far += alike and abs(difference) > args.within
        print(f"{name:18}{ours:>14.2f}{theirs:>14.2f}{difference:>+12.2%}{'' if alike else '  defined otherwise'}")
    return 1 if far else 0


def octavo(args: argparse.Namespace, url: str) -> dict:
    """The metrics of one run of octavo bench: a trace of equal requests in a closed loop."""
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder, "equal.csv"), Path(folder, "out.json")
        rows = [f"2024-01-01 00:00:{i // 1000 % 60:02}.{i % 1000:03},{args.prompt},{args.output}" for i in range(args.requests)]
        trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
        command = [sys.executable, "-m", "octavo", "bench", "--trace", str(trace), "--url", url, "--json", str(out)]
        command += ["--concurrency", f"{args.concurrency}", "--tokenizer", args.tokenizer, "--warmup", "1"]
        run(args, command)
        return json.loads(out.read_text())["metrics"]


def vllm(args: argparse.Namespace, url: str, model: str, seed: int) -> dict:
    """The result file of one run of vLLM's. seed: another one each time, or the server's prefix cache knows the prompts."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            args.vllm, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", url,
            "--endpoint", "/v1/completions", "--model", model, "--tokenizer", args.tokenizer, "--dataset-name", "random",
            "--random-input-len", f"{args.prompt}", "--random-output-len", f"{args.output}", "--num-prompts", f"{args.requests}",
            "--max-concurrency", f"{args.concurrency}", "--ignore-eos", "--temperature", "0", "--disable-tqdm",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99", "--seed", f"{seed}",
            "--save-result", "--result-dir", folder, "--result-filename", "out.json",
        ]  # fmt: skip
        run(args, command)
        return json.loads(Path(folder, "out.json").read_text())


def run(args: argparse.Namespace, command: list[str]) -> None:
    pin = [] if args.cpu is None else ["taskset", "-c", f"{args.cpu}"]
    done = subprocess.run([*pin, *command], capture_output=True, text=True, env=os.environ | {"VLLM_TARGET_DEVICE": "cpu"})
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextmanager
def server(args: argparse.Namespace) -> Iterator[str]:
    if args.url is not None:
        yield args.url.rstrip("/").removesuffix("/v1")
        return
    with started(args.ttft, args.itl) as ours:
        yield ours


def ask(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url + "/v1/models") as answer:
        return answer.read()


if __name__ == "__main__":
    sys.exit(main())
