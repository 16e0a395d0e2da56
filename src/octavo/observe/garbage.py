"""GarbageWatch: how long Python's garbage collections hold up this process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

WORTH_A_LINE_S = 100e-6  # shorter ones of the youngest generation come many times a second, and are only summed up


class GarbageWatch:
    """Sums up collections from ``start`` to ``close``, and reports each that is long, or of more than the youngest generation.

    seconds, count: of all collections since ``take``. on_collection: called with the moment it began, its generation, its seconds
    and how many objects it collected.
    """

    def __init__(self, now: Callable[[], float], on_collection: Callable[[float, int, float, int], None]):
        self.seconds = 0.0
        self.count = 0
        self._now = now
        self._on_collection = on_collection
        self._began = 0.0
        self._callback: Callable[[str, dict[str, int]], None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        watch = weakref.ref(self)  # the interpreter's list of callbacks must not keep an engine alive

        def callback(phase: str, info: dict[str, int]) -> None:
            if (self := watch()) is not None:
                self._see(phase, info)

        self._callback = callback
        gc.callbacks.append(callback)
        weakref.finalize(self, _forget, callback)

    def close(self) -> None:
        """Watch no more."""
        if self._callback is not None:
            _forget(self._callback)
            self._callback = None

    def take(self) -> tuple[float, int]:
        """Seconds and count since the last call."""
        taken = self.seconds, self.count
        self.seconds, self.count = 0.0, 0
        return taken

    def _see(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = self._now()
            return
        if not self._began:  # it was under way when the watch started
            return
        seconds = self._now() - self._began
        self.seconds += seconds
        self.count += 1
        if info["generation"] > 0 or seconds >= WORTH_A_LINE_S:
            self._on_collection(self._began, info["generation"], seconds, info["collected"])


def _forget(callback: Callable[[str, dict[str, int]], None]) -> None:
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)
