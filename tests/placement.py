"""Hand-made KV views: where sequences lie in an arena in which everything that was not written is NaN."""

from __future__ import annotations

import numpy as np

from octavo.kv.arena import Arena, KVSpec
from octavo.kv.view import KVView

CONTIGUOUS = 0  # as a block size: each sequence in one run
MIXED = -1  # every other sequence in one run, the others in blocks of 16


def make_view(spec: KVSpec, slots: int, capacity: int, block: int, seed: int = 0) -> KVView:
    """Room for ``capacity`` tokens in each slot, in runs of ``block`` tokens that lie in the arena in random order."""
    whole = [block == CONTIGUOUS or (block == MIXED and slot % 2 == 1) for slot in range(slots)]
    runs = [capacity if w else 16 if block == MIXED else block for w in whole]
    pieces = [(slot, i, run) for slot, run in enumerate(runs) for i in range(-(-capacity // run))]
    table = np.zeros((slots, max(-(-capacity // run) for run in runs)), np.int32)
    place = 3  # a run begins anywhere
    for at in np.random.default_rng(seed).permutation(len(pieces)):
        slot, i, run = pieces[at]
        table[slot, i] = place
        place += run
    arena = Arena(spec, place + 5)
    arena.array()[:] = 0xFF  # not a number, in every element type
    return KVView(arena, table, np.array(runs, np.int32))
