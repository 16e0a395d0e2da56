"""``octavo sweep``: from the command line's arguments to the table, the plot and JSON."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from octavo import machine
from octavo.bench.interrupt import STATUS as INTERRUPTED
from octavo.bench.interrupt import Interrupt
from octavo.bench.report import Json
from octavo.bench.suites import suite
from octavo.bench.table import counted
from octavo.bench.workload import Workload
from octavo.config import DEFAULT_MODEL
from octavo.errors import ConfigError
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import open_checkpoint
from octavo.sweep.arguments import QUICK_MINUTES
from octavo.sweep.asked import Asked
from octavo.sweep.findings import findings
from octavo.sweep.fits import count_fits
from octavo.sweep.folder import Folder
from octavo.sweep.grid import Grid, Skipped, make_grid
from octavo.sweep.growth_report import GrowthReport
from octavo.sweep.html import page
from octavo.sweep.png import write_png
from octavo.sweep.quick import choose, time_engine
from octavo.sweep.rows import make_row
from octavo.sweep.runners import SharedRunner
from octavo.sweep.session import Session
from octavo.sweep.table import table_lines
from octavo.version import __version__

SCHEMA = 1
CHOSEN = "chosen.json"
AT_THE_END_S = 15.0  # of a quick sweep, for counting what fits and for writing


def sweep(args: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Run ``octavo sweep``. settings: the engine's, as far as they were given. Returns the exit status: 130 after Ctrl-C."""
    started = time.monotonic()
    asked = Asked.of(args, settings)
    if args.json not in (None, "-") and not os.access(Path(args.json).absolute().parent, os.W_OK):
        raise ConfigError(f"json is {args.json}: a file in a folder that is there and can be written to is accepted.")
    checkpoint = open_checkpoint(settings.get("model", DEFAULT_MODEL))
    grid = make_grid(asked, checkpoint)
    out = sys.stderr if args.json == "-" else sys.stdout
    folder = Folder(args.out or f"octavo-sweep-{time.strftime('%Y%m%d-%H%M%S')}", asked.json())
    try:
        return _Sweep(asked, grid, checkpoint, folder, args.words, out).run(started, args.json)
    finally:
        folder.close()


class _Sweep:
    def __init__(self, asked: Asked, grid: Grid, checkpoint: Checkpoint, folder: Folder, words: Sequence[str], out: TextIO):
        self._asked = asked
        self._grid = grid
        self._checkpoint = checkpoint
        self._folder = folder
        self._words = words
        self._out = out
        self._runners = SharedRunner()
        self._model = asked.settings.get("model", DEFAULT_MODEL)

    def run(self, started: float, json_file: str | None) -> int:
        grid, folder = self._grid, self._folder
        _say(
            f"octavo sweep: {counted(len(grid.points), 'configuration')} of {self._model}, "
            f"max_model_len {grid.max_model_len}; {'going on' if folder.began else 'kept'} in {folder.path}"
        )
        for skipped in grid.skipped:
            _say(f"skipped: {skipped.what}: {skipped.reason}")
        with Interrupt() as interrupt:
            chosen = self._choose(interrupt)
            if chosen is not None:
                session = self._session(chosen)
                session.run(interrupt, time.monotonic() - started)
                self._runners.close()
        if chosen is None or session.interrupted:
            _say(f"octavo sweep: stopped; the same command with --out {shlex.quote(str(folder.path))} goes on from here")
            return INTERRUPTED
        return self._report(session, self._about(chosen), json_file)

    def _choose(self, interrupt: Interrupt) -> Json | None:
        """Rounds, requests of each suite (None: the suite's own number) and the context that their lengths are made for (None:
        ``max_model_len``): what was asked for or, with --quick, what there is time for, chosen once and kept for when the sweep
        goes on. None where it was interrupted."""
        asked, grid = self._asked, self._grid
        if not asked.quick:
            return {"rounds": asked.repeat, "requests": None, "context": None}
        chosen: Json | None = self._folder.get(CHOSEN)
        if chosen is None:
            config = grid.config(grid.points[0])
            speed = time_engine(config, self._checkpoint, self._runners, interrupt)
            if speed is None:
                return None
            setups = len({setup.in_a_step for setup in grid.setups})
            growth = (setups, asked.contexts, asked.batches)
            chosen = choose(grid, asked.repeat, QUICK_MINUTES * 60, speed, growth, self._workload)
            self._folder.put(CHOSEN, chosen)
        _say(
            f"quick: {counted(chosen['rounds'], 'round')} of {chosen['requests']} requests, as long as in a context of "
            f"{min(chosen['context'], grid.max_model_len)}; what fits is counted with the whole suite at max_model_len"
        )
        return chosen

    def _session(self, chosen: Json) -> Session:
        workloads = {name: self._workload(name, chosen["requests"], chosen["context"]) for name in self._asked.suites}
        for workload in workloads.values() if chosen["context"] is None else ():  # else it was said already
            for note in workload.notes:
                _say(f"{workload.name}: {note}")
        return Session(
            self._asked,
            self._grid,
            workloads,
            self._checkpoint,
            self._folder,
            self._runners,
            rounds=chosen["rounds"],
            seconds=QUICK_MINUTES * 60 - AT_THE_END_S if self._asked.quick else None,
            words=self._words,
        )

    def _workload(self, name: str, requests: int | None = None, context: int | None = None) -> Workload:
        most = self._grid.max_model_len
        return suite(name, requests=requests, max_model_len=most if context is None else min(most, context))

    def _about(self, chosen: Json) -> list[str]:
        """What was run, in lines."""
        described = machine.describe()
        lines = [
            f"{self._model}, max_model_len {self._grid.max_model_len}; {described['cpu']}, {counted(described['cpus'], 'CPU')}"
        ]
        for name in self._asked.suites:
            asked = self._workload(name, chosen["requests"], chosen["context"]).requests
            prompts, outputs = sum(r.prompt_tokens for r in asked), sum(r.output_tokens for r in asked)
            short = "" if chosen["context"] is None else f", lengths as for a context of {chosen['context']}"
            lines.append(f"{name}: {len(asked)} requests, {prompts} prompt and {outputs} output tokens{short}")
        return lines

    def _report(self, session: Session, about: list[str], json_file: str | None) -> int:
        """Table, plot, growth and findings: shown, and kept in the run directory."""
        rows = []
        for point in self._grid.points:
            if rounds := session.of_point(point):
                fits = count_fits(self._grid.config(point), self._workload(point.group.suite), self._checkpoint)
                rows.append(make_row(point, rounds, fits))
        growth = GrowthReport({setup: session.of_growth(setup) for setup in session.growing})
        skipped = [*self._grid.skipped, *session.skipped()]
        sentences = findings(rows)
        table = [*about, "", *table_lines(rows), "", *growth.lines()] if rows else []
        table += _skipped_lines(skipped)
        print("", *table, "", *sentences, sep="\n", file=self._out)
        document = {
            "schema": SCHEMA,
            "rows": rows,
            "growth": growth.json(),
            "findings": sentences,
            "skipped": [{"what": one.what, "reason": one.reason} for one in skipped],
            "command": shlex.join(["octavo", *self._words]),
            "octavo": __version__,
            "machine": machine.describe(),
            "model": self._model,
            "max_model_len": self._grid.max_model_len,
        }
        self._keep(document, about, table, sentences)
        if json_file == "-":
            print(json.dumps(document, allow_nan=False))
        elif json_file:
            Path(json_file).write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
        return int(not rows)

    def _keep(self, document: Json, about: list[str], table: list[str], sentences: list[str]) -> None:
        folder, rows = self._folder, document["rows"]
        folder.put("table.json", document)
        folder.write("table.txt", "\n".join([*table, "", *sentences]) + "\n")
        folder.write("plot.html", page(rows, sentences, table, [*about, document["command"]]))
        missing = write_png(rows, folder.path / "plot.png")
        made = "plot.html" if missing else "plot.html, plot.png"
        print(f"\nKept in {folder.path}: table.txt, table.json, {made}", file=self._out, flush=True)
        if missing:
            print(f"No plot.png: {missing}.", file=self._out, flush=True)


def _skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    return ["", *(f"Skipped: {one.what}: {one.reason}" for one in skipped)] if skipped else []


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
