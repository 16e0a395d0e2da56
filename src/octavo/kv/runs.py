"""Run: consecutive token places, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Run:
    """The run of one sequence, or what is kept of it once the sequence is gone.

    serial: a number of its own, never given again. slot: of its sequence, -1 once that is gone.
    start:  where it begins. length: its places.
    limit:  the most tokens that its sequence may ever hold.
    reach:  positions below this were handed out for writing; a step under way may still write the last of them, so whoever moves
            the run copies that many.
    filled: of a kept run, how many tokens it holds (of a live one the layout knows).
    units:  indices of the units of the prefix index that it offers.
    old:    while it slides, where it began before; its tokens below ``moved`` are at ``start``, all others still at ``old``.
    used:   of a kept run, when it was last found or released, as a growing number.
    """

    serial: int
    slot: int
    start: int
    length: int
    limit: int
    reach: int
    filled: int = 0
    units: range = field(default=range(0))
    old: int = -1
    moved: int = 0
    used: int = 0

    @property
    def sliding(self) -> bool:
        """Whether it lies in two parts."""
        return self.old >= 0

    @property
    def end(self) -> int:
        """Behind its last place."""
        return (self.old if self.sliding else self.start) + self.length

    def pieces(self, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Where its first ``tokens`` tokens are: place, position, how many."""
        here = min(tokens, self.moved) if self.sliding else tokens
        if here:
            yield self.start, 0, here
        if tokens > here:
            yield self.old + here, here, tokens - here
