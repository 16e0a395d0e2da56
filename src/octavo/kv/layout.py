"""Layout: decides where a sequence's tokens lie in the arena. One file and one class for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from octavo.kv.usage import Usage
from octavo.kv.view import Int32s, Move, nothing
from octavo.kv.work import KVWork


class Layout(ABC):
    """Places sequences, named by slot, in an arena of ``capacity`` tokens. Owns ``table`` and ``run`` (see ``KVView``).

    ``admit``, ``extend`` and ``fork`` return False without side effects where there is no room. Nothing here looks at keys,
    values or token ids. Memory returns in ``release`` alone.

    A step may be under way that writes positions which ``extend`` or ``admit`` handed out and ``filled`` does not count yet.
    Moves are carried out after it, so whoever moves what a live sequence has moves all that was handed out.

    filled:   per slot, how many of its first positions hold computed tokens. The cache keeps it up to date; a layout reads it to
              count what is used and to copy no more than that. A layout sets it in ``admit``, ``fork`` and ``release``.
    on_evict: called with a handle that ``offer`` gave out once the tokens behind it are about to be overwritten.
    touched:  slots whose ``table`` row or ``run`` a layout has changed since the cache last looked.
    work:     what was done, for the step record. A layout adds what it spends on further room, evicting, moving and tables.
    """

    name: str
    block_size: int
    shares: bool  # whether a prefix that is in the arena need not be computed again

    def __init__(self, capacity: int, slots: int, width: int):
        self.capacity = capacity
        self.table: Int32s = np.zeros((slots, width), np.int32)
        self.run: Int32s = np.ones(slots, np.int32)
        self.filled: list[int] = [0] * slots
        self.touched: set[int] = set()
        self.on_evict: Callable[[int], None] = lambda handle: None
        self.work = KVWork()

    @property
    @abstractmethod
    def longest(self) -> int:
        """The most tokens that one sequence alone could hold."""

    @abstractmethod
    def admit(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        """Place a new sequence with room for ``length`` tokens, which will have ``expected`` tokens in the end, as far as one can
        tell, and never more than ``limit``.

        shared: handles of blocks that already hold its first tokens, in order; referenced, not copied. reused: how many tokens of
        them the sequence takes as they are; where that ends inside the last one, that one is copied before it is written.
        """

    def make_room(self, length: int, limit: int) -> bool:
        """Called when ``admit`` has refused: join free places by moving what is there, at once or as much as is due before one
        step. True: the same ``admit`` fits now. False: it does not yet, or there are not enough free places in all."""
        return False

    def reusable(self, length: int, shared: tuple[int, ...], reused: int) -> int:
        """How many of the ``reused`` tokens behind these handles ``admit`` can take over for a sequence of ``length`` tokens."""
        return reused

    @abstractmethod
    def extend(self, slot: int, length: int) -> bool:
        """Make room so that positions below ``length`` can be written."""

    @abstractmethod
    def fork(self, parent: int, child: int, length: int) -> bool:
        """Start a sequence in slot ``child`` that has the first ``length`` tokens of the parent's, all of them computed."""

    def offer(self, slot: int, index: int) -> int:
        """Keep block ``index`` of the slot, full of computed tokens, for others to share, even when nobody holds it any more,
        until its space is needed. Returns the handle by which ``admit`` takes it again. Only where ``shares``."""
        raise NotImplementedError(f"the {self.name} layout shares nothing.")

    def offered(self) -> set[int]:
        """Handles of all that is kept for others to share."""
        return set()

    def withdraw_all(self) -> None:
        """Stop keeping what was offered; sequences that hold some of it are not touched. Only where ``shares``."""
        raise NotImplementedError(f"the {self.name} layout shares nothing.")

    @abstractmethod
    def release(self, slot: int) -> None:
        """Let go of everything the slot holds; nothing, where it holds nothing."""

    def add_moves(self, moves: list[Move]) -> None:
        """Let these be carried out too, after all that was decided so far. Only where places that are released keep what they
        hold until something else is written there."""
        raise NotImplementedError(f"the {self.name} layout moves nothing for others.")

    @abstractmethod
    def take_moves(self) -> tuple[Move, ...]:
        """The copies to be made before the next step, once."""

    def preparation(self) -> Callable[[], None]:
        """``KVView.prepare`` of the view whose moves were taken last."""
        return nothing

    @abstractmethod
    def usage(self) -> Usage:
        """Where the arena's tokens are."""

    @property
    @abstractmethod
    def table_entries(self) -> int:
        """Entries of ``table`` that are in use."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """The settings of this layout that take effect, name to value."""

    @abstractmethod
    def check(self) -> None:
        """Raise IntegrityError unless every token of the arena is accounted for exactly as often as it is referenced."""
