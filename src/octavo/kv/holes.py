"""Holes: what lies free between the runs of an arena."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from octavo.errors import IntegrityError


class Holes:
    """Free token places as maximal spans ``[start, end)`` in order of address. A call costs a bisection and the shift of a short
    list: there is at most one hole more than there are runs."""

    def __init__(self, capacity: int):
        self._starts = [0] if capacity else []
        self._ends = [capacity] if capacity else []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def largest(self) -> int:
        """Places of the longest hole."""
        return max((end - start for start, end in self), default=0)

    def end_of(self, start: int) -> int:
        """Where the hole that holds place ``start`` ends; ``start`` itself where no hole does."""
        i = bisect_right(self._starts, start) - 1
        return max(start, self._ends[i]) if i >= 0 else start

    def claim(self, start: int, end: int) -> None:
        """Take a span out of the hole that holds all of it."""
        if start == end:
            return
        starts, ends = self._starts, self._ends
        i = bisect_right(starts, start) - 1
        if i < 0 or ends[i] < end:
            raise IntegrityError(f"tokens {start} to {end} of the arena are claimed, but not free.")
        before, after = starts[i], ends[i]
        starts[i : i + 1] = [place for place, there in ((before, before < start), (end, end < after)) if there]
        ends[i : i + 1] = [place for place, there in ((start, before < start), (after, end < after)) if there]

    def give(self, start: int, end: int) -> None:
        """Free a span, and join it to its neighbours."""
        if start == end:
            return
        starts, ends = self._starts, self._ends
        i = bisect_right(starts, start)
        left, right = i > 0 and ends[i - 1] == start, i < len(starts) and starts[i] == end
        low, high = i - left, i + right
        first, last = (starts[low] if left else start), (ends[i] if right else end)
        starts[low:high] = [first]
        ends[low:high] = [last]
