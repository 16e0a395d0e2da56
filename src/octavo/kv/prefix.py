"""PrefixIndex: which tokens, following which others, already have their keys and values somewhere."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(slots=True)
class PrefixStats:
    """Counters since start, in tokens, over all admissions (a sequence that was preempted and comes back asks again).

    queries:  tokens that were asked for: all that an admitted sequence brought.
    hits:     of these, tokens that were found.
    rounding: of these, tokens beyond the last whole unit of what the sequence brought, as far as they were not found. Nothing
              smaller than a unit is indexed, so these could not have been found by their own digest whatever was computed before.
    reusable: of these, tokens that were found or whose 16-token unit, with all before it, some sequence of this process has held
              before: what a prefix cache that never forgets would have found, whatever the layout and with the cache off too.
    """

    queries: int = 0
    hits: int = 0
    rounding: int = 0
    reusable: int = 0

    @property
    def misses(self) -> int:
        """Tokens in whole units that were not found."""
        return self.queries - self.hits - self.rounding

    def count(self, tokens: int, reused: int, unit: int, seen: int) -> None:
        """Enter one admitted sequence.

        tokens, reused: that it brought, and that were found. unit: that is indexed; 0: nothing is. seen: of ``SeenPrefixes``.
        """
        self.reusable += max(reused, min(seen, tokens - 1))
        if unit:
            self.queries += tokens
            self.hits += reused
            self.rounding += min(tokens % unit, tokens - reused)


class Chain:
    """The digests of a growing list of token ids, unit by unit, each depending on all before it and computed once.

    ``tokens`` is the caller's list: only appended to, never changed. Digest i is BLAKE2b (16 bytes) of digest i - 1 and the ids
    ``tokens[i * unit : (i + 1) * unit]`` as little-endian int32.
    """

    __slots__ = ("_pack", "digests", "tokens", "unit")

    def __init__(self, tokens: Sequence[int], unit: int, digests: list[bytes] | None = None):
        self.tokens = tokens
        self.unit = unit
        self.digests = digests or []
        self._pack = struct.Struct(f"<{unit}i").pack

    def digest(self, index: int) -> bytes:
        """Digest of the unit with this index; the tokens must reach that far."""
        digests, unit = self.digests, self.unit
        while len(digests) <= index:
            i = len(digests)
            ids = self._pack(*self.tokens[i * unit : (i + 1) * unit])
            digests.append(blake2b((digests[-1] if i else b"") + ids, digest_size=16).digest())
        return digests[index]


class PrefixIndex:
    """Digest of a unit of tokens (and of all before it) -> handle of the place that holds them. The layout owns the handles.

    unit: tokens that are hashed together: the smallest prefix that can be shared.
    several: whether a digest may lead to several handles, of places that each hold all tokens up to there.
    """

    several = False

    def __init__(self, unit: int):
        self.unit = unit
        self._handles: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def match(self, chain: Chain) -> tuple[tuple[int, ...], int]:
        """Handles of the longest known prefix and how many tokens to take from them.

        The last token is never taken, because a sequence without a token to compute has no logits: where everything is known, the
        last handle is to be used up to its last but one token.
        """
        handles: list[int] = []
        for i in range(len(chain.tokens) // self.unit):
            handle = self._handles.get(chain.digest(i))
            if handle is None:
                break
            handles.append(handle)
        reused = max(0, min(len(handles) * self.unit, len(chain.tokens) - 1))
        return tuple(handles[: -(-reused // self.unit)]), reused

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._handles

    def insert(self, digest: bytes, handle: int, tokens: Sequence[int] = ()) -> None:
        """Make a place known. Its digest must not be known yet: the first one wins. tokens: of the sequence it is part of."""
        self._handles[digest] = handle
        self._digests[handle] = digest

    def forget(self, handle: int) -> None:
        """The tokens behind this handle are gone."""
        del self._handles[self._digests.pop(handle)]

    def clear(self) -> None:
        """Forget everything."""
        self._handles.clear()
        self._digests.clear()

    def handles(self) -> set[int]:
        """Every handle that a digest leads to, for checks."""
        return set(self._digests)
