"""Who waits and who runs, each in order of rank."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator

from octavo.scheduler.sequence import Sequence


class WaitingQueue:
    """Sequences that are not admitted, first in rank first. O(log n) a call; removed ones are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._gone = 0

    def push(self, sequence: Sequence) -> None:
        """Add a sequence."""
        heapq.heappush(self._heap, (sequence.rank, sequence))

    def first(self) -> Sequence | None:
        """The one to admit next, left in place."""
        while self._heap and self._heap[0][1].aborted:
            heapq.heappop(self._heap)
            self._gone -= 1
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Take out what ``first`` showed."""
        return heapq.heappop(self._heap)[1]

    def discard(self, sequence: Sequence) -> None:
        """Take out a sequence that is marked ``aborted``."""
        assert sequence.aborted
        self._gone += 1
        if self._gone * 2 > len(self._heap):  # keeps memory, and the work per removal, in proportion to who really waits
            self._heap = [entry for entry in self._heap if not entry[1].aborted]
            heapq.heapify(self._heap)
            self._gone = 0

    def __len__(self) -> int:
        return len(self._heap) - self._gone


class RunningSet:
    """Sequences that hold a slot, in order of rank. Positions are found by bisection, never by scanning."""

    def __init__(self) -> None:
        self._ranks: list[tuple[int, int]] = []
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Insert at its rank."""
        at = bisect.bisect(self._ranks, sequence.rank)
        self._ranks.insert(at, sequence.rank)
        self._sequences.insert(at, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out; it must be in."""
        at = bisect.bisect_left(self._ranks, sequence.rank)
        assert self._sequences[at] is sequence
        del self._ranks[at], self._sequences[at]

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)
