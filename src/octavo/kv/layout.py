"""Layout: decides where a sequence's tokens lie in the arena. One file and one class for each."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from octavo.kv.usage import Usage
from octavo.kv.view import Int32s, Move


class Layout(ABC):
    """Places sequences, named by slot, in an arena of ``capacity`` tokens. Owns ``table`` and ``run`` (see ``KVView``).

    ``admit``, ``extend`` and ``fork`` return False without side effects where there is no room. Nothing here looks at keys,
    values or token ids.
    """

    name: str
    block_size: int
    shares: bool  # whether sequences can hold the same tokens (prefix caching, fork)

    def __init__(self, capacity: int, slots: int, width: int):
        self.capacity = capacity
        self.table: Int32s = np.zeros((slots, width), np.int32)
        self.run: Int32s = np.ones(slots, np.int32)

    @property
    @abstractmethod
    def longest(self) -> int:
        """The most tokens that one sequence alone could hold."""

    @abstractmethod
    def admit(self, slot: int, length: int, expected: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        """Place a new sequence with room for ``length`` tokens, of an expected final length ``expected``.

        shared: blocks that already hold its first tokens, in order; referenced, not copied. reused: how many tokens of them the
        sequence takes as they are; where that ends inside the last shared block, that block is copied before it is written.
        """

    @abstractmethod
    def extend(self, slot: int, length: int) -> bool:
        """Make room so that positions below ``length`` can be written."""

    @abstractmethod
    def release(self, slot: int) -> None:
        """Let go of everything the slot holds."""

    @abstractmethod
    def take_moves(self) -> tuple[Move, ...]:
        """The copies to be made before the next step, once."""

    @abstractmethod
    def usage(self) -> Usage:
        """Where the arena's tokens are."""

    @abstractmethod
    def check(self) -> None:
        """Raise IntegrityError unless every token of the arena is accounted for exactly as often as it is referenced."""
