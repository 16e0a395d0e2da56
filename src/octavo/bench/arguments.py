"""The options of ``octavo bench``. Light: read at every start of the command line, whatever the command."""

from __future__ import annotations

import argparse

from octavo.bench.load import DEFAULT_CONCURRENCY, DEFAULT_TIMEOUT_S, DEFAULT_WARMUP
from octavo.bench.suites import SUITES

ALL = "all"
DESCRIPTION = """\
Send a fixed workload to an engine in this process, or with --url to any server that speaks the OpenAI API (vLLM, SGLang,
llama.cpp, octavo), and report latencies and rates. docs/metrics.md has the formula of each figure, docs/workloads.md describes
the suites."""
EXAMPLES = """\
examples:
  octavo bench mixed                                             the default model, in this process
  octavo bench mixed --url http://127.0.0.1:8000 --rate 4        a server, 4 requests per second
  octavo bench short --repeat 5 --vary block_size=8,16           two configurations in turn, and whether they differ
  octavo bench all --json results.json                           every suite
  octavo bench compare before.json after.json"""
# What takes effect with --url only, by its name in the arguments.
NOT_HERE = ("seed",)  # engine settings without effect: the engine draws nothing, outputs are greedy
SERVER_OPTIONS = ("endpoint", "served_model", "api_key", "tokenizer", "extra_body", "ignore_eos")


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Everything but the engine's settings."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = ", ".join((*SUITES, ALL))
    parser.add_argument("suite", metavar="SUITE", nargs="?", choices=(*SUITES, ALL), help=f"one of {names}; or give --trace")
    what = parser.add_argument_group("workload")
    what.add_argument(
        "--trace", metavar="FILE", help="replay a trace: Azure, vidur or BurstGPT CSV, Mooncake or ShareGPT JSON, a capture"
    )
    what.add_argument("--trace-format", metavar="NAME", help="its format; left out, it is told from the content")
    what.add_argument("--time-scale", type=float, metavar="X", help="multiply a trace's arrivals; 0.5 is twice as fast")
    what.add_argument(
        "--requests", type=int, metavar="N", help="how many requests; default: the suite's own number, or all of a trace"
    )
    what.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of every random choice; the default 0 is the same workload everywhere"
    )
    what.add_argument("--prompt-seed", type=int, metavar="N", help=(
        "of the prompts' contents; default: --seed, with --url another one each time, so that a server's prefix cache knows none"
    ))  # fmt: skip
    what.add_argument("--print", action="store_true", help="show the requests and send nothing")
    how = parser.add_argument_group("load")
    how.add_argument("--concurrency", type=int, metavar="N", help=(
        f"requests under way at once, the next sent when one ends (default {DEFAULT_CONCURRENCY}); with --rate the most"
    ))  # fmt: skip
    how.add_argument(
        "--rate", type=float, metavar="R", help="send R requests per second whatever becomes of them; inf: all at once"
    )
    how.add_argument("--burstiness", type=float, default=1.0, metavar="X", help=(
        "shape of the gamma distribution of gaps with --rate: 1, the default, is a Poisson process, less is burstier, inf is even"
    ))  # fmt: skip
    how.add_argument(
        "--warmup",
        type=int,
        default=DEFAULT_WARMUP,
        metavar="N",
        help=f"requests sent before, left out (default {DEFAULT_WARMUP})",
    )
    how.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="SECONDS", help=(
        f"give a request up after this long, as an error (default {DEFAULT_TIMEOUT_S:g})"
    ))  # fmt: skip
    target = parser.add_argument_group("server, instead of an engine in this process")
    target.add_argument("--url", action="append", metavar="URL", help="of the server; several are measured in turn")
    target.add_argument(
        "--endpoint", choices=("completions", "chat"), help="default: completions, which takes prompts of exact lengths"
    )
    target.add_argument("--served-model", metavar="NAME", help="the model's name there; default: the first of /v1/models")
    target.add_argument("--api-key", metavar="KEY", help="default: $OPENAI_API_KEY")
    target.add_argument("--tokenizer", metavar="MODEL", help=(
        "of the server's model, a folder, file or alias; default: found by the name that the server gives, if it is here"
    ))  # fmt: skip
    target.add_argument("--extra-body", metavar="JSON", help="fields to add to every request; null leaves one out")
    target.add_argument("--no-ignore-eos", dest="ignore_eos", action="store_false", default=None, help=(
        "let outputs end where the model ends them, for servers that do not know ignore_eos"
    ))  # fmt: skip
    compare = parser.add_argument_group("comparison and output")
    compare.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds; several configurations take turns (A B A B)")
    compare.add_argument(
        "--vary", action="append", metavar="SETTING=A,B", help="a configuration for each value; may be given several times"
    )
    compare.add_argument("--config", action="append", metavar="FILE", help=(
        "a TOML file of engine settings, which the command line overrides; several files are several configurations"
    ))  # fmt: skip
    compare.add_argument("--goodput", nargs="+", default=[], metavar="GOAL", help=(
        "also count the requests that meet goals: ttft:0.5 tpot:50ms e2e:10, seconds unless a unit says otherwise"
    ))  # fmt: skip
    compare.add_argument(
        "--json", metavar="FILE", help="write everything as JSON; - is standard output, the table then goes to standard error"
    )
    compare.add_argument(
        "--baseline", metavar="DIR", help="compare with the results kept there; those of a suite that it lacks are kept"
    )


def add_compare(parser: argparse.ArgumentParser) -> None:
    """``octavo bench compare``."""
    parser.description = "Compare results that octavo bench wrote with --json: each file with the first."
    parser.add_argument("files", metavar="FILE", nargs="+", help="at least two")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - is standard output")
