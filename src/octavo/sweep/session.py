"""Session: everything that a sweep measures, piece by piece, in turn, each kept as soon as it is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from octavo.bench.interrupt import Interrupt
from octavo.bench.report import Json
from octavo.bench.workload import Workload
from octavo.errors import ConfigError
from octavo.models.checkpoint import Checkpoint
from octavo.sweep.asked import Asked
from octavo.sweep.folder import Folder
from octavo.sweep.grid import Grid, Skipped
from octavo.sweep.growth import measure_growth
from octavo.sweep.measure import Bench
from octavo.sweep.point import Point, Setup
from octavo.sweep.runners import SharedRunner

Measure = Callable[[Interrupt, str], Json | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """What is measured at once. what: a Point, or a Setup for its growth. file: in the run directory."""

    what: Point | Setup
    round: int
    file: str
    title: str
    measure: Measure


class Session:
    """Rounds are outermost and configurations take turns within them (A B C A B C): a machine that drifts does not decide.

    rounds:  how many. seconds: no further round begins that would end later than this after the start; None: no bound.
    say:     what happens, for people, where standard error is no terminal that shows a bar.
    interrupted: whether it was.
    """

    def __init__(
        self,
        asked: Asked,
        grid: Grid,
        workloads: dict[str, Workload],
        checkpoint: Checkpoint,
        folder: Folder,
        runners: SharedRunner,
        *,
        rounds: int,
        seconds: float | None = None,
        words: Sequence[str] = (),
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ):
        self.interrupted = False
        self.rounds = rounds
        self._asked = asked
        self._grid = grid
        self._workloads = workloads
        self._checkpoint = checkpoint
        self._folder = folder
        self._runners = runners
        self._seconds = seconds
        self._say = say
        self._bench = Bench(checkpoint, runners, words)
        self._took: dict[Point | Setup, float] = {}
        self._spent = 0.0  # seconds that all pieces took, those of earlier runs included

    def run(self, interrupt: Interrupt, before_s: float = 0.0) -> None:
        """Measure what is not there yet. before_s: seconds that were spent already."""
        pieces = list(self._pieces())
        self._spent = before_s
        with tqdm(total=len(pieces), desc="sweep", leave=False, file=sys.stderr, disable=None,
                  bar_format="{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}, {postfix}") as bar:  # fmt: skip
            for at, piece in enumerate(pieces):
                if (at == 0 or piece.round > pieces[at - 1].round) and not self._time_for(piece.round):
                    self.rounds = piece.round
                    self._say(f"{self.rounds} rounds: a further one would not end in time")
                    return
                bar.set_description_str(piece.title, refresh=False)
                bar.set_postfix_str(self._left(pieces[at:]))
                made = self._folder.get(piece.file)
                if made is None:
                    made = self._measure(piece, interrupt)
                    if made is None:
                        self.interrupted = True
                        return
                    if bar.disable:
                        took = f"{made['wall_s']:.1f} s"
                        self._say(f"{at + 1}/{len(pieces)} {piece.title}: {took}, {self._left(pieces[at + 1 :])}")
                else:
                    self._spent += made["wall_s"]
                self._took[piece.what] = made["wall_s"]
                bar.update()

    def of_point(self, point: Point) -> list[Json]:
        """What was measured of it, a document for each round."""
        return self._made("points", point.slug)

    def of_growth(self, setup: Setup) -> list[Json]:
        """What was measured of its growth, likewise."""
        return self._made("growth", setup.slug)

    @property
    def growing(self) -> tuple[Setup, ...]:
        """The setups whose growth is measured: contiguous once, since what it reserves makes no difference to a step."""
        if not self._asked.contexts:
            return ()
        found: dict[Setup, Setup] = {}
        for setup in self._grid.setups:
            found.setdefault(setup.in_a_step, setup)
        return tuple(found.values())

    def skipped(self) -> list[Skipped]:
        """What turned out to be impossible only when it was built."""
        found = []
        for point in self._grid.points:
            made = self._folder.get(_file("points", point.slug, 0))
            if made is not None and "reason" in made:
                found.append(Skipped(f"{point.setup.title} on {point.group.title}", made["reason"]))
        return found

    def _pieces(self) -> Iterator[Piece]:
        for round in range(self.rounds):
            for attention in self._asked.attention:  # another one may mean another runner
                for point in self._grid.points:
                    if point.setup.attention == attention:
                        yield self._of_point(point, round)
                for setup in self.growing:
                    if setup.attention == attention:
                        yield self._of_growth(setup, round)

    def _of_point(self, point: Point, round: int) -> Piece:
        config, workload = self._grid.config(point), self._workloads[point.group.suite]
        title = f"{point.group.suite} {point.setup.title} {round + 1}/{self.rounds}"

        def measure(interrupt: Interrupt, title: str) -> Json | None:
            return self._bench.run(point, config, workload, interrupt, title)

        return Piece(point, round, _file("points", point.slug, round), title, measure)

    def _of_growth(self, setup: Setup, round: int) -> Piece:
        config = next(config for (other, _), config in self._grid.configs.items() if other == setup)
        contexts, batches = self._asked.contexts, self._asked.batches

        def measure(interrupt: Interrupt, title: str) -> Json | None:
            return measure_growth(setup, config, contexts, batches, self._checkpoint, self._runners, interrupt)

        return Piece(
            setup,
            round,
            _file("growth", setup.slug, round),
            f"growth of {setup.in_a_step.title} {round + 1}/{self.rounds}",
            measure,
        )

    def _measure(self, piece: Piece, interrupt: Interrupt) -> Json | None:
        """Measure a piece and keep it; None where it was interrupted. What cannot be built is kept with the reason."""
        begin = time.monotonic()
        made: Json | None
        try:
            made = None if interrupt.wanted else piece.measure(interrupt, piece.title)
        except ConfigError as error:
            made = {"reason": str(error)}
        if made is None:
            return None
        made["wall_s"] = time.monotonic() - begin
        self._spent += made["wall_s"]
        self._folder.put(piece.file, made)
        return made

    def _made(self, kind: str, slug: str) -> list[Json]:
        found = (self._folder.get(_file(kind, slug, round)) for round in range(self.rounds))
        return [made for made in found if made is not None and "reason" not in made]

    def _time_for(self, round: int) -> bool:
        """Whether there is time for one more round; there always is for the first."""
        if round == 0 or self._seconds is None:
            return True
        return self._spent + sum(self._took.values()) <= self._seconds

    def _left(self, pieces: Sequence[Piece]) -> str:
        """The time that these will take, by what the same took last; for what is new, others of its kind stand, or all."""
        if not self._took:
            return "time left not known yet"
        total = 0.0
        for piece in pieces:
            alike = [took for what, took in self._took.items() if type(what) is type(piece.what)] or list(self._took.values())
            total += self._took.get(piece.what, sum(alike) / len(alike))
        return f"about {_minutes(total)} left"


def _file(kind: str, slug: str, round: int) -> str:
    return f"{kind}/{slug}/round-{round + 1}.json"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
