"""KeptRuns: tokens of sequences that are gone, kept in the holes for others to copy until their space is needed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from octavo.kv.runs import Run


class KeptRuns:
    """Runs that nobody holds, in order of address. They take no space: every place of theirs is part of a hole and is claimed as
    if they were not there.

    on_evict: called with a run and the indices of units that it does not offer any more.
    """

    def __init__(self, unit: int, on_evict: Callable[[Run, range], None]):
        self.tokens = 0  # of all of them
        self._unit = unit
        self._on_evict = on_evict
        self._starts: list[int] = []
        self._at: dict[int, Run] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Run]:
        return (self._at[start] for start in self._starts)

    def add(self, run: Run) -> None:
        """Keep ``run.filled`` tokens; their places are free by now."""
        insort(self._starts, run.start)
        self._at[run.start] = run
        self.tokens += run.filled
        self.touch(run)

    def touch(self, run: Run) -> None:
        """It is in demand: evict it after all others."""
        self._clock += 1
        run.used = self._clock

    def remove(self, run: Run) -> None:
        """Let go of it; what it offers is the caller's matter."""
        del self._starts[bisect_left(self._starts, run.start)], self._at[run.start]
        self.tokens -= run.filled

    def clear(self) -> None:
        """Let go of all."""
        self._starts.clear()
        self._at.clear()
        self.tokens = 0

    def overlapping(self, start: int, end: int) -> list[Run]:
        """Those with a place in ``[start, end)``."""
        low = bisect_right(self._starts, start)
        if low and start < self._end(self._starts[low - 1]):
            low -= 1
        return [self._at[at] for at in self._starts[low : bisect_left(self._starts, end)]]

    def evict(self, start: int, end: int) -> int:
        """These places are about to be overwritten. A run that begins before them keeps its beginning, if that is a unit or more.
        Returns how many units are lost."""
        lost = 0
        for run in self.overlapping(start, end):
            self.remove(run)
            left = max(0, start - run.start)
            keep = range(run.units.start, max(run.units.start, min(run.units.stop, left // self._unit)))
            gone = range(keep.stop, run.units.stop)
            run.units, run.filled = keep, left
            self._on_evict(run, gone)
            lost += len(gone)
            if keep:
                insort(self._starts, run.start)
                self._at[run.start] = run
                self.tokens += left
        return lost

    def places(self, start: int, end: int) -> Iterator[int]:
        """Where within a hole a run could begin so that it disturbs little: at the front, and behind each kept run."""
        yield start
        for run in self.overlapping(start, end):
            yield run.start + run.filled

    def newest(self, places: Iterable[int], length: int) -> Iterator[tuple[int, int]]:
        """For each place, in rising order: the latest ``used`` of all runs that ``length`` tokens there would overwrite (0: of
        none), and the place. Linear in runs and places."""
        window: deque[Run] = deque()  # of the runs that may matter from here on, in order of address, ``used`` falling
        i = 0
        for place in places:
            while i < len(self._starts) and self._starts[i] < place + length:
                run = self._at[self._starts[i]]
                while window and window[-1].used <= run.used:
                    window.pop()
                window.append(run)
                i += 1
            while window and window[0].start + window[0].filled <= place:
                window.popleft()
            yield (window[0].used if window else 0), place

    def _end(self, start: int) -> int:
        return start + self._at[start].filled
