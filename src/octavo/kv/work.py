"""KVWork: what the KV cache did, for the step record."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec


def sampling(unit: int) -> int:
    """How many pieces of work, one for each ``unit`` tokens of a sequence, share one measurement. 1 but for small units: there
    they come in every step and for every sequence, and reading the clock for each would cost as much as a part of the work."""
    return max(1, 4 // unit)


class KVWork(msgspec.Struct):
    """Sums since ``clear``, in seconds of ``now``, each without the others. The cache and its layout add to them where the work
    is done; what takes less than reading the clock (an ``extend`` that finds room in the last block) is not measured.

    allocate_s:   placing an admitted sequence. extend_s: further room for a running one, its table entries included.
    evict_s:      giving up cached prefixes. evicted_blocks: how many (contiguous: units).
    release_s:    taking memory back.
    match_s:      hashing and looking up what a sequence brings. offer_s: entering what it has computed.
    compaction_s: deciding on moves that join holes. compacted_tokens: that they copy.
    grown_tokens: that are copied because a run was full (contiguous, reserve grow).
    table_s:      writing whole rows of block tables. table_bytes: bytes written, single entries too.
    swap_s:       finding places in the swap space and deciding on the copies. swapped_out_tokens, swapped_in_tokens: copied.
    fault_pages:  that a step writes and that nobody brought in before it began (virtual): each a page fault at most.
    """

    now: Callable[[], float] = time.monotonic
    allocate_s: float = 0.0
    extend_s: float = 0.0
    evict_s: float = 0.0
    release_s: float = 0.0
    match_s: float = 0.0
    offer_s: float = 0.0
    compaction_s: float = 0.0
    table_s: float = 0.0
    table_bytes: int = 0
    evicted_blocks: int = 0
    compacted_tokens: int = 0
    grown_tokens: int = 0
    fault_pages: int = 0
    swap_s: float = 0.0
    swapped_out_tokens: int = 0
    swapped_in_tokens: int = 0

    def total_s(self) -> float:
        """All seconds."""
        return (
            self.allocate_s + self.extend_s + self.evict_s + self.release_s + self.match_s + self.offer_s + self.compaction_s
            + self.table_s + self.swap_s
        )  # fmt: skip

    def clear(self) -> None:
        """Begin again at nothing."""
        self.allocate_s = self.extend_s = self.evict_s = self.release_s = 0.0
        self.match_s = self.offer_s = self.compaction_s = self.table_s = 0.0
        self.table_bytes = self.evicted_blocks = 0
        self.compacted_tokens = self.grown_tokens = self.fault_pages = 0
        self.swap_s = 0.0
        self.swapped_out_tokens = self.swapped_in_tokens = 0
