"""RunIndex: the prefix index of layouts that copy: it knows all runs that hold a prefix, and finds what fits to the token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from octavo.kv.prefix import Chain, PrefixIndex

LOOKED_AT = 8
"""How many of the runs that hold the same whole units are compared token by token, the newest first."""


class RunIndex(PrefixIndex):
    """A run holds every unit of its sequence, those that it was given a copy of included. So each run offers all of them, a
    digest leads to several handles, and the run behind the deepest one that matches has the whole prefix. When one run is gone
    the others are still found.

    A copy may end anywhere, so what follows the last whole unit is compared token by token.

    held: how many computed tokens the run behind a handle has, from its first on.
    """

    several = True

    def __init__(self, unit: int, held: Callable[[int], int]):
        super().__init__(unit)
        self._held = held
        self._holders: dict[bytes, dict[int, None]] = {}
        self._tokens: dict[int, Sequence[int]] = {}  # by handle: the list of the sequence that offered it

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._holders

    def match(self, chain: Chain) -> tuple[tuple[int, ...], int]:
        """The handle of a run with the longest known prefix, if there is one, and how many tokens to take from it; as
        ``PrefixIndex.match``."""
        units, holders = 0, None
        for i in range(len(chain.tokens) // self.unit):
            found = self._holders.get(chain.digest(i))
            if found is None:
                break
            units, holders = i + 1, found
        if holders is None:
            return (), 0
        best, handle = -1, 0
        for candidate in islice(reversed(holders), LOOKED_AT):
            further = self._further(chain.tokens, candidate, units * self.unit)
            if further > best:
                best, handle = further, candidate
        reused = min(units * self.unit + best, len(chain.tokens) - 1)
        return ((handle,), reused) if reused else ((), 0)

    def _further(self, tokens: Sequence[int], handle: int, start: int) -> int:
        """How many tokens from ``start`` on, at most a unit, are those of the run behind the handle."""
        theirs = self._tokens[handle]
        end = min(start + self.unit, len(tokens), len(theirs), self._held(handle))
        return next((i for i in range(end - start) if tokens[start + i] != theirs[start + i]), max(0, end - start))

    def insert(self, digest: bytes, handle: int, tokens: Sequence[int] = ()) -> None:
        """Make a run known that holds this unit; the newest is looked at first."""
        holders = self._holders.setdefault(digest, {})
        holders.pop(handle, None)
        holders[handle] = None
        self._digests[handle] = digest
        self._tokens[handle] = tokens

    def forget(self, handle: int) -> None:
        digest = self._digests.pop(handle)
        del self._tokens[handle]
        holders = self._holders[digest]
        del holders[handle]
        if not holders:
            del self._holders[digest]

    def clear(self) -> None:
        super().clear()
        self._holders.clear()
        self._tokens.clear()
