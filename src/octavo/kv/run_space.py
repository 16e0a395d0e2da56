"""RunSpace: the arena as live runs, holes between them, and kept runs within the holes; and the moves that are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from octavo.errors import IntegrityError
from octavo.kv.holes import Holes
from octavo.kv.kept import KeptRuns
from octavo.kv.runs import Run
from octavo.kv.view import Move
from octavo.kv.work import KVWork


class RunSpace:
    """Everything here is as it will be once ``moves`` are carried out, one after the other. So a place that a move leaves can be
    the target of the next one, and can be written by the step that follows them all.

    free: places that no live run has; more than the holes have, by the gap that a slide is closing.
    """

    def __init__(self, capacity: int, unit: int, on_evict: Callable[[Run, range], None]):
        self.capacity = capacity
        self.free = capacity
        self.holes = Holes(capacity)
        self.kept = KeptRuns(unit, on_evict)
        self.live: dict[int, Run] = {}
        self.moves: list[Move] = []
        self.work = KVWork()

    # ---- places

    def find(self, length: int, aligned: bool) -> tuple[int, int] | None:
        """Where a new run disturbs kept ones least: the first place that disturbs none, or else the one whose latest used victim
        is the oldest. Returns that victim's ``used`` (0: none) and the place, or None where no hole is long enough.

        aligned: runs are all of this length, and lie at multiples of it.
        """
        best: tuple[int, int] | None = None
        for candidate in self.kept.newest(self._places(length, aligned), length):
            if best is None or candidate[0] < best[0]:
                best = candidate
                if not best[0]:
                    break
        return best

    def _places(self, length: int, aligned: bool) -> Iterable[int]:
        for start, end in self.holes:
            if end - start >= length:
                places = range(start, end, length) if aligned else self.kept.places(start, end)
                yield from (place for place in places if place + length <= end)

    def behind(self, run: Run) -> int:
        """Free places right behind a live run."""
        return self.holes.end_of(run.end) - run.end

    def in_order(self) -> list[Run]:
        """Live runs by address."""
        return sorted(self.live.values(), key=lambda run: run.start)

    # ---- runs

    def put(self, run: Run) -> None:
        """Make a run live, in a hole."""
        self._claim(run.start, run.start + run.length)
        self.live[run.serial] = run
        self.free -= run.length

    def remove(self, run: Run) -> None:
        """Free a live run's places."""
        del self.live[run.serial]
        self.holes.give(run.start, run.end)
        self.free += run.length

    def lengthen(self, run: Run, length: int) -> None:
        """Grow into the hole behind."""
        end = run.end
        self._claim(end, end + length - run.length)
        self.free -= length - run.length
        run.length = length

    def copy(self, pieces: Iterable[tuple[int, int, int]], start: int) -> int:
        """Copy what ``Run.pieces`` shows to a run that begins at ``start``. Returns the tokens that had to be moved."""
        moved = 0
        for place, position, tokens in pieces:
            if place != start + position:
                self.moves.append(Move(place, start + position, tokens))
                moved += tokens
        return moved

    def relocate(self, run: Run, start: int, length: int) -> None:
        """Copy a live run, with a new length, into a hole elsewhere, and free where it was."""
        self._claim(start, start + length)
        self.copy(run.pieces(run.reach), start)
        self.holes.give(run.start, run.end)
        self.free -= length - run.length
        run.start, run.length, run.old, run.moved = start, length, -1, 0

    # ---- slides

    def begin_slide(self, run: Run, start: int) -> None:
        """Begin to move a live run down into the hole before it."""
        self._claim(start, run.start)
        run.old, run.start, run.moved = run.start, start, 0

    def advance_slide(self, run: Run, tokens: int) -> None:
        """Move the next ``tokens`` tokens of a run that slides; when none is left, the gap behind it becomes free."""
        if tokens:
            self.moves.append(Move(run.old + run.moved, run.start + run.moved, tokens))
            run.moved += tokens
            self.work.compacted_tokens += tokens
        if run.moved >= run.reach:
            end = run.end
            run.old, run.moved = -1, 0
            self.holes.give(run.start + run.length, end)

    def shift(self, run: Run, start: int) -> None:
        """Move a live run at once, down or up, over free places."""
        if start < run.start:
            self.begin_slide(run, start)
            self.advance_slide(run, run.reach)
        elif start > run.start:
            self._claim(run.end, start + run.length)
            self.work.compacted_tokens += self.copy(run.pieces(run.reach), start)
            self.holes.give(run.start, start)
            run.start = start

    def _claim(self, start: int, end: int) -> None:
        work = self.work
        begin = work.now()
        lost = self.kept.evict(start, end)
        if lost:
            work.evict_s += work.now() - begin
            work.evicted_blocks += lost
        self.holes.claim(start, end)

    def check(self) -> None:
        """Raise IntegrityError unless runs and holes cover the arena exactly and kept runs lie within holes."""
        end = 0
        for start, stop in sorted([*((run.start, run.end) for run in self.live.values()), *self.holes]):
            if start != end:
                raise IntegrityError(f"tokens {min(start, end)} to {max(start, end)} of the arena are lost or held twice.")
            end = stop
        if end != self.capacity:
            raise IntegrityError(f"runs and holes end at token {end}, the arena at {self.capacity}.")
        holes = list(self.holes)
        for (_, stop), (start, _) in pairwise(holes):
            if stop >= start:
                raise IntegrityError(f"two holes meet at token {start} and are not joined, or are out of order.")
        if self.free != self.capacity - sum(run.length for run in self.live.values()):
            raise IntegrityError(f"{self.free} free places are counted, which is not what the runs leave.")
        end = 0
        for run in self.kept:
            stop = run.start + run.filled
            if run.start < end or not run.units or self.holes.end_of(run.start) < stop:
                raise IntegrityError(f"the kept run at token {run.start} overlaps another, offers nothing, or lies in no hole.")
            end = stop
        if self.kept.tokens != sum(run.filled for run in self.kept):
            raise IntegrityError(f"{self.kept.tokens} kept tokens are counted, which is not what the kept runs hold.")
