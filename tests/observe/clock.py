"""A clock that stands still until it is told otherwise."""

from __future__ import annotations

from octavo.observe.clock import Clock


class ManualClock(Clock):
    def __init__(self, moment: float = 1000.0):
        self.moment = moment

    def now(self) -> float:
        return self.moment

    def pass_(self, seconds: float) -> None:
        self.moment += seconds
