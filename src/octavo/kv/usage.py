"""Usage: where the tokens of an arena are."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Counts of token places; times ``KVSpec.token_bytes`` they are bytes.

    capacity:       all that the arena has.
    reserved:       held by sequences, a shared place counted once. What the prefix index alone holds is free.
    used:           of these, places that hold a computed token.
    wasted_inside:  reserved - used: the rest of a last block, or of a run reserved ahead.
    wasted_outside: free but out of reach: what is left over where the capacity is no multiple of a block or run, and for runs of
                    different lengths every hole except the largest.
    shared:         places saved by sharing: the sum over places of (references - 1).
    cached:         free places whose tokens the prefix index still offers.
    """

    capacity: int
    reserved: int
    used: int
    wasted_inside: int
    wasted_outside: int
    shared: int
    cached: int

    @property
    def fraction(self) -> float:
        """reserved / capacity: 0 when no sequence holds anything."""
        return self.reserved / self.capacity if self.capacity else 0.0
