"""RebuiltPaged: paged, with block management as slow engines do it. It exists for the ladder only; nothing else uses it."""

from __future__ import annotations

import numpy as np

from octavo.kv.layout import Layout
from octavo.kv.paged import ENTRY_BYTES, Paged
from octavo.kv.view import Move


class RebuiltPaged(Paged):
    """Block tables are written whole in every step, from lists of blocks, padded to the longest. Every ``every`` steps the pool
    is compacted for locality, in one pause: the blocks of all sequences are copied to lie in order, sequence after sequence.

    Neither is needed: blocks of one size never need to move, and a table changes only where a block was added. Without sharing.
    """

    shares = False

    def __init__(self, capacity: int, slots: int, max_model_len: int, block_size: int, every: int):
        super().__init__(capacity, slots, max_model_len, block_size)
        self.every = every
        self._steps = 0

    def take_moves(self) -> tuple[Move, ...]:
        self._steps += 1
        work = self.work
        if self._steps % self.every == 0:
            begin = work.now()
            self._compact()
            work.compaction_s += work.now() - begin
        begin = work.now()
        self._rebuild()
        work.table_s += work.now() - begin
        return super().take_moves()

    def _rebuild(self) -> None:
        width = max(map(len, self.blocks))
        rows = [[block * self.block_size for block in blocks] + [0] * (width - len(blocks)) for blocks in self.blocks]
        self.table[:, :width] = np.array(rows, np.int32)
        self.touched.update(range(len(rows)))
        self.work.table_bytes += len(rows) * width * ENTRY_BYTES

    def _compact(self) -> None:
        pool, size = self.pool, self.block_size
        held = [block for blocks in self.blocks for block in blocks]
        if not pool.available:
            return  # no block that a cycle of copies could begin with
        moves = _rotations(held)
        self._moves += [Move(source * size, target * size, size) for source, target in moves]
        self.work.compacted_tokens += len(moves) * size
        pool.drop(held)
        for _ in range(pool.available):
            pool.take()
        pool.drop(range(pool.blocks - 1, len(held) - 1, -1))
        first = 0
        for slot, blocks in enumerate(self.blocks):
            self.blocks[slot] = list(range(first, first + len(blocks)))
            first += len(blocks)


def _rotations(held: list[int]) -> list[tuple[int, int]]:
    """Copies (source, target), in order, after which block ``held[i]``, for every i, lies in block i. There must be one more."""
    spare = len(held)  # no target, and copied away by the time that it is written
    source_of = {target: source for target, source in enumerate(held) if target != source}
    waiting = set(source_of.values())  # blocks that must be copied away before they are written
    copies: list[tuple[int, int]] = []

    def fill(target: int) -> None:
        """Fill ``target``, which is free to be written, then the places that this sets free."""
        while target in source_of:
            source = source_of.pop(target)
            copies.append((source, target))
            waiting.discard(source)
            target = source

    for target in list(source_of):
        if target in source_of and target not in waiting:
            fill(target)
    for target in list(source_of):  # what is left are cycles
        if target in source_of:
            copies.append((target, spare))
            end = source_of.pop(target)
            copies.append((end, target))
            while source_of[end] != target:
                source = source_of.pop(end)
                copies.append((source, end))
                end = source
            del source_of[end]
            copies.append((spare, end))
    return copies


def scattered(layout: Layout, seed: int) -> None:
    """Put the free blocks of a paged layout in random order, as after hours of service: fresh ones lie together by accident."""
    if isinstance(layout, Paged):
        taken = [layout.pool.take() for _ in range(layout.pool.available)]
        layout.pool.drop(np.random.default_rng(seed).permutation(taken).tolist())
