"""Rounds: every configuration is measured once in each, in another order each time, so that what drifts meets all of them."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from octavo.ladder.causes import INDIRECTION, Cause, Removed, arm, subsets
from octavo.ladder.experiment import WARMUP, Laboratory, Load, Measured
from octavo.ladder.growth import Growth, fit

PART = 4  # growth is measured from this part of batch and context on

Run = tuple[Removed, Load]


@dataclass(slots=True)
class Rounds:
    """What was measured.

    load:   of the ladder itself; other loads are there to see how times grow.
    causes: that can be removed here, by name.
    runs:   by what was removed and the load: one of each round.
    """

    load: Load
    causes: tuple[str, ...]
    runs: dict[Run, list[Measured]] = field(default_factory=dict)

    @property
    def best(self) -> Removed:
        """Everything removed."""
        return frozenset(self.causes)

    @property
    def contiguous(self) -> Removed:
        """The same with contiguous memory."""
        return self.best | {INDIRECTION}

    @property
    def count(self) -> int:
        """Rounds."""
        return len(self.of(frozenset()))

    def of(self, removed: Removed) -> list[Measured]:
        """A configuration on the ladder's load."""
        return self.runs[removed, self.load]

    def times(self, removed: Removed) -> list[float]:
        """The same: mean seconds from token to token in each round."""
        return [one.mean_s for one in self.of(removed)]

    def ladder(self) -> dict[Removed, list[float]]:
        """``times`` of every subset of the causes."""
        return {removed: self.times(removed) for removed, load in self.runs if load == self.load and INDIRECTION not in removed}

    @property
    def same_tokens(self) -> bool:
        """Whether all configurations computed the same in all rounds."""
        return len({one.tokens for (_, load), measured in self.runs.items() if load == self.load for one in measured}) == 1

    def growth(self, removed: Removed) -> Growth:
        """How the time of a step grows, from all loads that the configuration was measured on."""
        points, times = [], []
        for (other, load), measured in self.runs.items():
            if other == removed:
                halfway = WARMUP + load.steps // 2
                points.append((load.batch, sum(load.contexts) + load.batch * halfway))
                times.append(statistics.median(one.mean_s for one in measured))
        return fit(points, times)


def planned(causes: Sequence[Cause], load: Load) -> list[Run]:
    """What a round consists of: every subset of the causes, and contiguous; slow and best on smaller loads, too."""
    best = frozenset(cause.name for cause in causes)
    runs: list[Run] = [(removed, load) for removed in subsets(causes)]
    runs.append((best | {INDIRECTION}, load))
    batches = dict.fromkeys((load.batch, max(1, load.batch // PART)))
    contexts = dict.fromkeys((load.context, max(8, load.context // PART)))
    smaller = [replace(load, batch=batch, context=context) for batch in batches for context in contexts]
    return runs + [(removed, other) for other in smaller if other != load for removed in (frozenset[str](), best)]


def measure_rounds(
    laboratory: Laboratory,
    load: Load,
    rounds: int,
    within_s: float | None,
    done: Callable[[int], None] = lambda round: None,
) -> Rounds:
    """Measure so many rounds; fewer where another one would probably not end ``within_s`` seconds, but one at least.

    done: called after each run, with the number of its round, from 1.
    """
    found = Rounds(load, tuple(cause.name for cause in laboratory.causes))
    runs = planned(laboratory.causes, load)
    found.runs = {run: [] for run in runs}
    order = list(runs)
    shuffle = random.Random(0).shuffle
    begin = time.monotonic()
    for number in range(1, rounds + 1):
        spent = time.monotonic() - begin
        if within_s is not None and number > 1 and spent + spent / (number - 1) > within_s:
            break
        shuffle(order)
        with _no_garbage_collection():
            for removed, of in order:
                found.runs[removed, of].append(laboratory.measure(arm(removed), of))
                done(number)
    return found


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python's collector strikes when it likes, in whatever configuration: it is no cause of this ladder."""
    gc.collect()
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
