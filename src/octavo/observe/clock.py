"""Clock: where everyone takes the time from, so that a virtual one can take its place."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """A monotonic clock, in seconds from an arbitrary moment."""

    @abstractmethod
    def now(self) -> float:
        """The present moment."""


class RealClock(Clock):
    """``time.monotonic()``: one time line for all processes of a Linux machine."""

    now = staticmethod(time.monotonic)  # read several times a step: no frame of Python around it
