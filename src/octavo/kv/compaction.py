"""Compaction: joins the holes between contiguous runs, in one pause or in slices between steps."""

from __future__ import annotations

from octavo.kv.run_space import RunSpace
from octavo.kv.runs import Run

COMPACTIONS = ("pause", "incremental")
SLICE_BYTES = 8 * 2**20
"""What an incremental compaction copies before one step: under 2 ms where memory is copied at 4.2 GB/s or more
(``benchmarks/compaction.py`` measures it)."""


class Compaction:
    """mode "pause": all live runs slide down at once, until one hole is left at the end. What it costs depends on the size of the
    arena: this is the spike that contiguous layouts are known for.

    mode "incremental": at most ``slice_tokens`` tokens before a step. Of all windows of neighbouring holes that are large enough
    together, the one with the fewest tokens in between is closed, from its lower end. A run with more tokens than a slice is
    shown in two parts meanwhile (``Run.sliding``), cut at multiples of ``piece``.

    Every slide takes a run down by at least one place, and nothing is admitted before whoever waits for the hole: so the sum of
    all starts falls with every slide until the hole is there.
    """

    def __init__(self, space: RunSpace, mode: str, slice_tokens: int):
        self.mode = mode
        self.slice_tokens = max(1, slice_tokens)
        self.piece = 1 << max(0, (self.slice_tokens // 4).bit_length() - 1)
        self._space = space
        self._sliding: Run | None = None
        self._left = self.slice_tokens

    def next_step(self) -> list[Run]:
        """Once for each step: carry on a slide that is under way. Returns the runs that moved: show their slots anew."""
        moved = []
        if self._sliding is not None:  # with what this step has left: otherwise it would lie in two parts until someone waits
            run = self._sliding
            if self._left and self._advance(self._left):
                moved.append(run)
        self._left = self.slice_tokens
        return moved

    def left(self, run: Run) -> None:
        """A run is gone, or was copied elsewhere."""
        if run is self._sliding:
            self._sliding = None

    def make_hole(self, length: int) -> tuple[bool, list[Run]]:
        """Join holes until one has ``length`` places; there must be as many free ones in all. Returns whether there is one, and
        the runs that moved."""
        moved: list[Run] = []
        space = self._space
        if self.mode == "pause":
            end = 0
            for run in space.in_order():
                if run.start > end:
                    space.shift(run, end)
                    moved.append(run)
                end = run.end
            return True, moved
        while True:
            if self._sliding is not None:
                run = self._sliding
                if not self._advance(self._left):
                    return False, moved
                moved.append(run)
                if self._sliding is not None:
                    return False, moved
            if space.holes.largest() >= length:
                return True, moved
            if not self._left:
                return False, moved
            run, start = self._next_slide(length)
            space.begin_slide(run, start)
            self._sliding = run

    def make_room_behind(self, run: Run, length: int) -> list[Run]:
        """Join holes behind a live run, at once, until there are ``length`` places; there must be as many free ones in all.
        Returns the runs that moved: first those from it downwards, then, where that is not enough, those above it, upwards."""
        space = self._space
        moved: list[Run] = []
        if self._sliding is not None:
            moved.append(self._sliding)
            self._advance(self._sliding.reach)
        runs = space.in_order()
        at = runs.index(run)
        ends = [0, *(r.end for r in runs)]
        starts = [*(r.start for r in runs), space.capacity]
        room, low, high = space.behind(run), at + 1, at
        while room < length and low > 0:
            low -= 1
            room += starts[low] - ends[low]
        while room < length:
            high += 1
            room += starts[high + 1] - ends[high + 1]
        end = ends[low]
        for other in runs[low : at + 1]:
            space.shift(other, end)
            end = other.end
        begin = starts[high + 1]
        for other in reversed(runs[at + 1 : high + 1]):
            space.shift(other, begin - other.length)
            begin = other.start
        return moved + runs[low : high + 1]

    def _advance(self, budget: int) -> bool:
        """Move as much of the run that slides as the budget allows; False where that is nothing."""
        run = self._sliding
        assert run is not None
        tokens = run.reach - run.moved
        if tokens > budget:
            tokens = budget - budget % self.piece
            if not tokens:
                return False
        self._left = max(0, self._left - tokens)
        self._space.advance_slide(run, tokens)
        if not run.sliding:
            self._sliding = None
        return True

    def _next_slide(self, length: int) -> tuple[Run, int]:
        """The first run of the cheapest window of holes that have ``length`` places together, and where it slides to."""
        runs = self._space.in_order()
        ends = [0, *(run.end for run in runs)]
        gaps = [begin - end for begin, end in zip([*(run.start for run in runs), self._space.capacity], ends, strict=True)]
        best, first = None, 0
        low = room = cost = 0
        for high, gap in enumerate(gaps):
            room += gap
            cost += runs[high - 1].reach if high else 0
            while room - gaps[low] >= length:
                room -= gaps[low]
                cost -= runs[low].reach
                low += 1
            if room >= length and (best is None or cost < best):
                best, first = cost, low
        return runs[first], ends[first]
