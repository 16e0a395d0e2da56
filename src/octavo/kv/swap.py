"""SwapSpace: where keys and values of preempted sequences wait, so that they need not be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import IntegrityError
from octavo.kv.blocks import FreeExtents
from octavo.kv.view import Int32s, Move

UNIT = 16
"""Tokens that the space is handed out in."""

Pieces = list[tuple[int, int]]
"""Token places as (first, tokens), in order of position, no two of them adjacent."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a sequence left behind: its first ``tokens`` tokens, in these places."""

    tokens: int
    pieces: tuple[tuple[int, int], ...]


class SwapSpace:
    """``tokens`` token places that begin at token index ``first`` of the arena, behind those that sequences run in.

    A sequence gets one piece where there is one that is long enough, else the longest ones: the fewer pieces, the fewer and
    larger the copies.
    """

    def __init__(self, first: int, tokens: int):
        self.first = first
        self.units = tokens // UNIT
        self._free = FreeExtents(self.units)
        self._held: set[Swapped] = set()

    @property
    def tokens(self) -> int:
        """Token places that it has."""
        return self.units * UNIT

    @property
    def free(self) -> int:
        """Token places that nobody holds."""
        return len(self._free) * UNIT

    def take(self, tokens: int) -> Swapped | None:
        """Places for so many tokens; None, and nothing taken, where there are not enough."""
        units = -(-tokens // UNIT)
        if units > len(self._free):
            return None
        pieces: Pieces = []
        while units:
            start, length = self._free.take_longest(units)
            pieces.append((self.first + start * UNIT, length * UNIT))
            units -= length
        swapped = Swapped(tokens, tuple(pieces))
        self._held.add(swapped)
        return swapped

    def give_back(self, swapped: Swapped) -> None:
        """Its places are free again."""
        self._held.remove(swapped)
        for start, length in swapped.pieces:
            first = (start - self.first) // UNIT
            self._free.give(list(range(first, first + length // UNIT)))

    def check(self) -> None:
        """Raise IntegrityError unless every place is free or held once."""
        held = sum(length for swapped in self._held for _, length in swapped.pieces)
        if held + self.free != self.tokens:
            raise IntegrityError(f"of {self.tokens} tokens of swap space {held} are held and {self.free} are free.")


def places(row: Int32s, run: int, first: int, end: int) -> Pieces:
    """Where positions first .. end - 1 of a sequence lie, by its row of a view's table and its run length."""
    pieces: Pieces = []
    while first < end:
        index, within = divmod(first, run)
        start, tokens = int(row[index]) + within, min(run - within, end - first)
        if pieces and sum(pieces[-1]) == start:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + tokens)
        else:
            pieces.append((start, tokens))
        first += tokens
    return pieces


def after(pieces: Sequence[tuple[int, int]], skipped: int) -> Pieces:
    """The same places without the first ``skipped`` tokens."""
    left: Pieces = []
    for start, length in pieces:
        cut = min(skipped, length)
        skipped -= cut
        if cut < length:
            left.append((start + cut, length - cut))
    return left


def copies(sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> list[Move]:
    """The fewest moves that copy the tokens at ``sources`` to ``targets``, until either is used up."""
    moves: list[Move] = []
    waiting, room = list(reversed(sources)), list(reversed(targets))
    while waiting and room:
        (source, have), (target, need) = waiting.pop(), room.pop()
        tokens = min(have, need)
        moves.append(Move(source, target, tokens))
        if have > tokens:
            waiting.append((source + tokens, have - tokens))
        if need > tokens:
            room.append((target + tokens, need - tokens))
    return moves
