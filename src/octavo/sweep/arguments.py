"""The options of ``octavo sweep``. Light: read at every start of the command line, whatever the command."""

from __future__ import annotations

import argparse

from octavo.bench.suites import SUITES

# Engine settings that are no option here: those that are swept have options of their own, the others belong to one engine.
NOT_HERE = ("seed", "kv_layout", "block_size", "attention", "kv_memory", "record", "profile")
DEFAULT_SUITES = "mixed"
DEFAULT_BLOCK_SIZES = "1,2,4,8,16,32,64,128,256"
DEFAULT_LAYOUTS = "contiguous,paged,hybrid,virtual"
DEFAULT_ATTENTION = "fused"
DEFAULT_CONCURRENCY = "16"
DEFAULT_CONTEXTS = "512,1024,2048,4096,8192"
DEFAULT_BATCHES = "1,2,4,8,16"
DEFAULT_KV_MEMORY = "1GiB"
DEFAULT_REPEAT = 3
# With --quick: the ends of the range of block sizes and the default between them, and the corners of the growth measurement.
QUICK_BLOCK_SIZES = "1,16,256"
QUICK_CONCURRENCY = "8"  # of a dozen requests: some are sent when others end
QUICK_CONTEXTS = "512,4096"
QUICK_BATCHES = "1,8"
QUICK_MINUTES = 10

DESCRIPTION = """\
Run fixed workloads on every combination of KV cache layout, block size, attention path, concurrency and KV memory, in turn
(A B C A B C), and report memory, latency, throughput and launches of each with its spread; then how the decode step grows with
context and batch, where the knee is, which differences are noise, and what it would set. docs/layouts.md explains the figures.
Lists are written with commas."""
EXAMPLES = """\
examples:
  octavo sweep --quick                                           at most 10 minutes: all four layouts, three block sizes
  octavo sweep --suites mixed,bimodal --kv-memory 512MiB,1GiB    the whole table, on two suites, with two sizes of memory
  octavo sweep --layouts paged --attention fused,per-request     what the attention path does to paged
  octavo sweep --out table                                       again, after it was killed: goes on where it stopped"""


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Everything but the engine's settings."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    swept = parser.add_argument_group("what is swept")
    for flag, metavar, what in (
        ("--suites", "NAMES", f"of {', '.join(SUITES)}, or all (default {DEFAULT_SUITES})"),
        (
            "--block-sizes",
            "LIST",
            f"powers of two from 1 to 256, for the layouts that have blocks (default {DEFAULT_BLOCK_SIZES})",
        ),
        ("--layouts", "NAMES", f"KV cache layouts (default {DEFAULT_LAYOUTS})"),
        ("--attention", "NAMES", f"attention paths: fused, gather, per-request (default {DEFAULT_ATTENTION})"),
        ("--concurrency", "LIST", f"requests under way at once, the next sent when one ends (default {DEFAULT_CONCURRENCY})"),
        ("--kv-memory", "LIST", f"bytes for keys and values: 512MiB, 1GiB, ... (default {DEFAULT_KV_MEMORY})"),
        ("--contexts", "LIST", f"tokens, for the growth of the decode step; 0: leave that out (default {DEFAULT_CONTEXTS})"),
        ("--batches", "LIST", f"sequences in a decode step, for its growth (default {DEFAULT_BATCHES})"),
    ):
        swept.add_argument(flag, metavar=metavar, help=what)
    swept.add_argument("--repeat", type=int, metavar="N", help=f"rounds (default {DEFAULT_REPEAT})")
    swept.add_argument("--quick", action="store_true", help=(
        f"at most {QUICK_MINUTES} minutes on two cores: block sizes {QUICK_BLOCK_SIZES}, concurrency {QUICK_CONCURRENCY}, "
        f"contexts {QUICK_CONTEXTS}, batches {QUICK_BATCHES} where the options above do not say otherwise, and as many requests "
        "and rounds as fit into that time"
    ))  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help=(
        "the run directory: everything measured, the table, the plot; a sweep that was stopped goes on there "
        "(default: a new one, octavo-sweep-DATE-TIME)"
    ))  # fmt: skip
    output.add_argument("--json", metavar="FILE", help=(
        "write the table as JSON; - is standard output, the table for people then goes to standard error"
    ))  # fmt: skip
