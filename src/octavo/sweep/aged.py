"""An empty KV cache as long use leaves it: memory that was written before, and free blocks in no order."""

from __future__ import annotations

import math
import mmap
import random
from collections.abc import Iterable

import numpy as np

from octavo.kv.cache import KVCache
from octavo.scheduler.plan import StepPlan

TURN = 16  # tokens that a sequence grows by in a turn, where the layout has no blocks


def age(kv: KVCache, sequences: int, seed: int = 0) -> None:
    """Let sequences grow side by side in random turns until the memory is full, and leave in random order.

    A fresh pool hands out consecutive blocks, so its block tables are runs by accident, and fresh memory makes whoever writes it
    first wait for pages: neither is so after an hour of service. What the layout itself brings back in order (hybrid joins free
    neighbours, virtual keeps pages for who comes next) is in order afterwards; that is the layout's merit and is measured.

    sequences: as many will run at once.
    """
    order = random.Random(seed)
    if kv.layout.name == "paged":
        for _ in range(_passes(kv.capacity // kv.block_size, len(kv.layout.filled))):
            _leave(kv, _full(kv, len(kv.layout.filled), order), order)
    lengths = _full(kv, min(sequences, len(kv.layout.filled)), order)
    kv.view(StepPlan(0, ())).prepare()
    _touch(kv, lengths)
    _leave(kv, lengths, order)
    kv.view(StepPlan(0, ())).prepare()
    kv.work.clear()


def _passes(blocks: int, sequences: int) -> int:
    """How often blocks must be dealt out to sequences until their order is random. Dealing to n and stacking up is an n-handed
    riffle shuffle backwards, k of them are one with n^k hands, and N cards need N^1.5 (Bayer and Diaconis, "Trailing the dovetail
    shuffle to its lair", Annals of Applied Probability 2(2), 1992)."""
    return math.ceil(1.5 * math.log(max(2, blocks)) / math.log(max(2, sequences)))


def _full(kv: KVCache, sequences: int, order: random.Random) -> dict[int, int]:
    """Fill the memory with so many sequences of one length; their lengths by slot."""
    return grow_side_by_side(kv, dict.fromkeys(range(sequences), min(kv.longest, kv.capacity // sequences)), order)


def _leave(kv: KVCache, slots: Iterable[int], order: random.Random) -> None:
    leaving = list(slots)
    order.shuffle(leaving)
    for slot in leaving:
        kv.release(slot)


def grow_side_by_side(kv: KVCache, wanted: dict[int, int], order: random.Random) -> dict[int, int]:
    """Start a sequence in each of these slots and let them grow to the lengths wanted, a block at a time in random turns, as far
    as there is room. Returns how long each became; who found no room at all is left out."""
    turn = kv.block_size or TURN
    lengths = {}
    for slot, length in wanted.items():
        if length and kv.admit(slot, [0], expected=length, limit=length) is not None:
            lengths[slot] = 1
    turns = [slot for slot in lengths for _ in range(0, wanted[slot], turn)]
    order.shuffle(turns)
    for slot in turns:
        longer = min(lengths[slot] // turn * turn + turn, wanted[slot])
        if kv.extend(slot, longer):
            lengths[slot] = longer
    return lengths


def _touch(kv: KVCache, lengths: dict[int, int]) -> None:
    """Write into every page, so that no layout waits for its first use alone. Virtual has those that its sequences have."""
    if kv.layout.name != "virtual":
        np.frombuffer(kv.arena.memory, np.uint8)[:: mmap.PAGESIZE] = 0
        return
    memory = kv.arena.array()
    for slot, length in lengths.items():
        begin = int(kv.layout.table[slot, 0])
        memory[:, :, begin : begin + length, 0] = 0
