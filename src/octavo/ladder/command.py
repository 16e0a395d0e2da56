"""``octavo ladder``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from octavo.errors import ConfigError
from octavo.ladder.arguments import DEFAULTS, QUICK
from octavo.ladder.causes import SLOW
from octavo.ladder.experiment import WARMUP, Laboratory, Load
from octavo.ladder.report import lines
from octavo.ladder.result import as_json
from octavo.ladder.rounds import Rounds, measure_rounds, planned
from octavo.ladder.shapley import shares
from octavo.models.load import open_checkpoint

QUICK_S = 200.0  # for all rounds; loading the model and running warm come on top
SHORT = 256  # no context is made shorter than this


def ladder(args: argparse.Namespace, model: str) -> int:
    """Measure and report. Returns the exit status: 1 where configurations computed different tokens."""
    checkpoint = open_checkpoint(model)
    load, repeat = _asked(args, checkpoint.config.context)
    if args.json not in (None, "-"):
        Path(args.json).touch()  # what cannot be written is said now
    laboratory = Laboratory(model, checkpoint, args.runner, load, args.threads)
    load = _warmed(laboratory, load, args.quick and args.context is None)
    out = sys.stderr if args.json == "-" else sys.stdout
    contexts = load.contexts
    described = laboratory.describe(SLOW)
    print(
        f"octavo ladder: {model} on {described['runner'].partition(',')[0]}, threads: {described['threads']}; {load.batch} "
        f"sequences of {min(contexts)} to {max(contexts)} tokens, decode only, over made-up keys and values",
        file=out,
    )
    rounds = _measured(laboratory, load, repeat, QUICK_S if args.quick else None)
    print(
        f"{rounds.count} {'round' if rounds.count == 1 else 'rounds'} of {2 ** len(rounds.causes) + 1} configurations in random "
        f"order, {load.steps} steps each after {WARMUP}; medians of the rounds\n",
        file=out,
    )
    if args.runner == "torch":
        print("The torch runner calls operation by operation: that cause cannot be removed here, and four are left.\n", file=out)
    found = shares(rounds.ladder(), rounds.causes)
    for line in lines(rounds, found, laboratory.model.layers):
        print(line, file=out)
    if args.json is not None:
        text = json.dumps(as_json(rounds, found), indent=2) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text, encoding="utf-8")
    return 0 if rounds.same_tokens else 1


def _asked(args: argparse.Namespace, most: int) -> tuple[Load, int]:
    """The load and the rounds: what was given, else the defaults, as far as the model's context goes."""
    values = QUICK if args.quick else DEFAULTS
    batch, context, steps, repeat = (
        values[name] if getattr(args, name) is None else getattr(args, name) for name in ("batch", "context", "steps", "repeat")
    )
    if repeat < 1:
        raise ConfigError(f"repeat is {repeat}: at least 1 is accepted.")
    if args.steps is None and args.compact_every > 0:
        steps = max(1, round(steps / args.compact_every)) * args.compact_every
    load = Load(batch, context, steps, args.compact_every)
    if args.context is None and load.longest > most:
        load = replace(load, context=most - load.growth)
    return load, repeat


def _warmed(laboratory: Laboratory, load: Load, shorten: bool) -> Load:
    """Run once, so that memory is there. The load; shorten: with contexts so short that two rounds fit into ``QUICK_S``."""
    runs = len(planned(laboratory.causes, load))
    while True:
        begin = time.monotonic()
        laboratory.measure(SLOW, load)
        if not shorten or load.context < 2 * SHORT or 2 * runs * (time.monotonic() - begin) < QUICK_S:
            return load
        load = replace(load, context=load.context // 2)


def _measured(laboratory: Laboratory, load: Load, repeat: int, within_s: float | None) -> Rounds:
    """With a bar on standard error, where that is a terminal."""
    runs = len(planned(laboratory.causes, load))
    with tqdm(total=repeat * runs, unit="run", leave=False, file=sys.stderr, disable=None) as bar:

        def done(number: int) -> None:
            bar.set_description(f"round {number} of {repeat}", refresh=False)
            bar.update()

        return measure_rounds(laboratory, load, repeat, within_s, done)
