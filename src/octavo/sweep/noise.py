"""Whether two configurations differ, from one value of each for each round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.compare import DRIFT
from octavo.bench.statistics import welch


@dataclass(frozen=True, slots=True)
class Difference:
    """change: relative, of the other to the base. beyond: whether that is more than noise."""

    change: float
    beyond: bool

    @property
    def more(self) -> bool:
        """The other is larger, beyond noise."""
        return self.beyond and self.change > 0

    @property
    def less(self) -> bool:
        """The other is smaller, beyond noise."""
        return self.beyond and self.change < 0


def difference(base: Sequence[float], other: Sequence[float]) -> Difference:
    """``octavo bench compare``'s test: Welch's on the logarithms of the rounds' values, at 99 %. From a single round of either,
    nothing under DRIFT is a difference. All values are above 0, and there is one of each at least."""
    found = welch(base, other)
    if found is None:
        change = statistics.median(other) / statistics.median(base) - 1
        return Difference(change, abs(change) > DRIFT)
    beyond = found.low is not None and found.high is not None and not found.low <= 0 <= found.high
    return Difference(found.change, beyond)


def test_name(rounds: int) -> str:
    """What the verdicts are told by, for people."""
    if rounds > 1:
        return f"Welch's t test over {rounds} rounds, 99 % interval"
    return f"a single round, of which nothing under {DRIFT:.0%} is told"
