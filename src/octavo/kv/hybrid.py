"""Layout "hybrid": short sequences get a run of consecutive blocks, long ones single blocks, out of one arena."""

from __future__ import annotations

from octavo.kv.blocks import BlockPool
from octavo.kv.paged import Paged


class Hybrid(Paged):
    """A sequence that is expected to end below ``threshold`` tokens gets a run: consecutive blocks for all those tokens, of which
    the table shows the first alone. Every other sequence is paged, and so is a short one that shares a prefix or for which there
    are no consecutive blocks.

    A run is blocks like any other, so its full ones can be shared; a sequence that outgrows its run keeps its blocks, has a table
    entry for each from then on, and nothing is copied.
    """

    name = "hybrid"

    def __init__(self, capacity: int, slots: int, max_model_len: int, block_size: int, threshold: int):
        self.threshold = threshold
        super().__init__(capacity, slots, max_model_len, block_size)
        self._in_runs = 0  # blocks of runs that have no table entry of their own

    def _make_pool(self, blocks: int) -> BlockPool:
        return BlockPool(blocks, runs=True)

    def admit(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        expected = max(length, min(expected, self._longest))
        if not shared and expected < self.threshold and length <= self._longest:
            count = -(-expected // self.block_size)
            start = self.pool.take_run(count)
            if start is not None:
                self._place_run(slot, start, count)
                return True
        return super().admit(slot, length, expected, limit, shared, reused)

    @property
    def table_entries(self) -> int:
        return self.pool.references - self._in_runs

    def release(self, slot: int) -> None:
        self._leave_run(slot)
        super().release(slot)

    def describe(self) -> dict[str, str]:
        return {**super().describe(), "hybrid_threshold": str(self.threshold)}

    def _place_run(self, slot: int, start: int, count: int) -> None:
        self.blocks[slot] = list(range(start, start + count))
        self.table[slot, 0] = start * self.block_size
        self.run[slot] = self.room[slot] = count * self.block_size
        self.filled[slot] = 0
        self.touched.add(slot)
        self._in_runs += count - 1
        self.work.table_bytes += self.table.itemsize

    def _leave_run(self, slot: int) -> None:
        """Called before a run's blocks get entries of their own, or are given back."""
        if self.run[slot] > self.block_size:
            self._in_runs -= len(self.blocks[slot]) - 1
            self.touched.add(slot)
            self.run[slot] = self.block_size

    def _as_blocks(self, slot: int) -> None:
        if self.run[slot] != self.block_size:
            self._leave_run(slot)
            self._place(slot, self.blocks[slot], self.filled[slot])
