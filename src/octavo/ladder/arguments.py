"""The options of ``octavo ladder``. Light: read at every start of the command line, whatever the command."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
The slow configuration of a paged KV cache, put together from five causes: attention per request, a call for each operation,
blocks of 8 tokens, block tables that are rebuilt in every step and compacted in a pause now and then, and scheduling that is
not overlapped. Each is removed alone and in every order; the result says how much each one accounts for, on this machine and
model. Decode only, over made-up keys and values."""
EXAMPLES = """\
examples:
  octavo ladder --quick                              less than 4 minutes on 2 cores
  octavo ladder --batch 32 --context 4096 --json -   the default model, a larger batch
  octavo ladder --runner torch --quick               the same on the torch runner, which has four of the causes"""
DEFAULTS = {"batch": 16, "context": 4096, "steps": 32, "repeat": 5}
QUICK = {"batch": 8, "context": 2048, "steps": 16, "repeat": 3}
COMPACT_EVERY = 16


def add_ladder(parser: argparse.ArgumentParser) -> None:
    """Everything but the model."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    helps = {
        "batch": "sequences that decode at once",
        "context": "tokens of the longest of them; the others have from a quarter of it on",
        "steps": "steps of each configuration that count, a multiple of --compact-every",
        "repeat": "rounds; each has every configuration once",
    }
    for name, words in helps.items():
        default = f"(default {DEFAULTS[name]}, with --quick {QUICK[name]})"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{words} {default}")
    parser.add_argument("--compact-every", type=int, default=COMPACT_EVERY, metavar="N", help=(
        f"steps from one compaction of the slow block management to the next (default {COMPACT_EVERY})"
    ))  # fmt: skip
    parser.add_argument("--runner", choices=("native", "torch"), default="native", help="what computes (default native)")
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads; unset: the CPUs that this process may use")
    parser.add_argument("--quick", action="store_true", help=(
        "a smaller load, shorter contexts where this machine is slow, and no round that would not end within 4 minutes"
    ))  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE", help="write the result as JSON; - is standard output, the text then goes to standard error"
    )
