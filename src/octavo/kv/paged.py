"""Layout "paged": a sequence is a list of blocks, taken when they are needed and shared by reference count."""

from __future__ import annotations

import numpy as np

from octavo.errors import IntegrityError
from octavo.kv.blocks import BlockPool
from octavo.kv.layout import Layout
from octavo.kv.usage import Usage
from octavo.kv.view import Move
from octavo.kv.work import sampling

ENTRY_BYTES = 4  # of a block table


class Paged(Layout):
    """Blocks of ``block_size`` tokens. What is left of the capacity beyond whole blocks is never used (``wasted_outside``).

    A fork may share a block that is not full yet. Its parent goes on writing there, behind what the fork can see; the fork copies
    its tokens out when it first writes, unless it is the only one left. So a parent is never held up, and a fork that writes
    nothing costs nothing.
    """

    name = "paged"
    shares = True

    def __init__(self, capacity: int, slots: int, max_model_len: int, block_size: int):
        super().__init__(capacity, slots, -(-max_model_len // block_size))
        self.block_size = block_size
        self.run[:] = block_size
        self.pool = self._make_pool(capacity // block_size)
        self.pool.on_evict = self._evicted
        self.blocks: list[list[int]] = [[] for _ in range(slots)]
        self.room = [0] * slots  # positions below this can be written as things are
        self._longest = min(max_model_len, self.pool.blocks * block_size)
        self._moves: list[Move] = []
        self._every, self._grown = sampling(block_size), 0
        # Blocks that a fork shared before they were full: their index in the sequences, and the slots whose tokens may end there.
        self._split: dict[int, tuple[int, set[int]]] = {}

    def _make_pool(self, blocks: int) -> BlockPool:
        return BlockPool(blocks)

    def _evicted(self, block: int) -> None:
        work = self.work
        begin = work.now()
        self.on_evict(block)
        work.evict_s += work.now() - begin
        work.evicted_blocks += 1

    @property
    def longest(self) -> int:
        return self._longest

    def admit(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        pool, size = self.pool, self.block_size
        copied = reused % size  # tokens to be copied out of the last shared block
        kept = shared[:-1] if copied else shared
        fresh = -(-length // size) - len(kept)
        revived = sum(not pool.refs[block] for block in kept)
        if fresh + revived > pool.available or length > self._longest:
            return False
        for block in kept:
            pool.hold(block)
        blocks = list(kept)
        if copied:
            pool.touch(shared[-1])
            blocks.append(pool.take())
            self._copy(shared[-1], blocks[-1], copied)
        while len(blocks) < fresh + len(kept):
            blocks.append(pool.take())
        self._place(slot, blocks, reused)
        return True

    def extend(self, slot: int, length: int) -> bool:
        if length <= self.room[slot]:
            return True
        return self._grow(slot, length)

    def _grow(self, slot: int, length: int) -> bool:
        """``extend`` beyond the room there is: more blocks, or a copy of a borrowed one, or both."""
        if length <= self.filled[slot]:
            return True
        self._grown += 1
        if self._grown % self._every:
            return self._take_room(slot, length)
        work = self.work
        begin, apart = work.now(), work.evict_s + work.table_s
        done = self._take_room(slot, length)
        work.extend_s += (work.now() - begin - (work.evict_s + work.table_s - apart)) * self._every
        return done

    def _take_room(self, slot: int, length: int) -> bool:
        pool, size, blocks = self.pool, self.block_size, self.blocks[slot]
        whole = len(blocks) * size
        fresh = -((whole - length) // size) if length > whole else 0
        borrowed = copy = False
        if self.room[slot] < whole:  # a fork
            tail = self.filled[slot] // size
            borrowed = tail < len(blocks) and self.room[slot] <= tail * size  # about to write into its parent's block
            copy = borrowed and pool.refs[blocks[tail]] > 1
        if fresh + copy > pool.available or length > self._longest:
            return False
        if fresh or copy:
            self._as_blocks(slot)
        if copy:
            source, target = blocks[tail], pool.take()
            self._copy(source, target, self.filled[slot] % size)
            pool.drop((source,))
            self._leave_split(slot, source)
            blocks[tail] = target
            self.table[slot, tail] = target * size
        elif borrowed:
            pool.withdraw(blocks[tail])  # its parent may have filled it, and others would find what the parent wrote
        for i in range(len(blocks), len(blocks) + fresh):
            block = pool.take()
            blocks.append(block)
            self.table[slot, i] = block * size
        self.room[slot] = len(blocks) * size
        self.touched.add(slot)
        self.work.table_bytes += (fresh + copy) * ENTRY_BYTES
        return True

    def fork(self, parent: int, child: int, length: int) -> bool:
        size = self.block_size
        blocks = self.blocks[parent][: -(-length // size)]
        for block in blocks:
            self.pool.hold(block)
        self._place(child, blocks, length)
        if length % size:
            self.room[child] = length - length % size
            self._split.setdefault(blocks[-1], (len(blocks) - 1, set()))[1].update((parent, child))
        return True

    def offer(self, slot: int, index: int) -> int:
        block = self.blocks[slot][index]
        self.pool.offer(block)
        return block

    def offered(self) -> set[int]:
        return set(np.flatnonzero(np.frombuffer(self.pool.offered, np.uint8)).tolist())

    def withdraw_all(self) -> None:
        self.pool.withdraw_all()

    def release(self, slot: int) -> None:
        blocks = self.blocks[slot]
        self.pool.drop(reversed(blocks))
        for block in list(self._split):
            self._leave_split(slot, block)
        self.blocks[slot] = []
        self.room[slot] = 0
        self.filled[slot] = 0

    def add_moves(self, moves: list[Move]) -> None:
        self._moves += moves

    def take_moves(self) -> tuple[Move, ...]:
        if not self._moves:
            return ()
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    @property
    def table_entries(self) -> int:
        return self.pool.references

    def usage(self) -> Usage:
        pool, size = self.pool, self.block_size
        reserved = pool.held * size
        shared = (pool.references - pool.held) * size
        # Every shared block counts as full for each of its holders; those that forks share are looked at one by one.
        used = sum(self.filled) - shared + self._overcounted()
        return Usage(
            capacity=self.capacity,
            reserved=reserved,
            used=used,
            wasted_inside=reserved - used,
            wasted_outside=self.capacity - pool.blocks * size,
            shared=shared,
            cached=len(pool.cached) * size,
        )

    def _overcounted(self) -> int:
        """Empty places of split blocks that ``usage`` subtracted for more holders than one."""
        total = 0
        for block, (index, slots) in self._split.items():
            end = (index + 1) * self.block_size
            empty = [max(0, end - self.filled[slot]) for slot in slots]
            # A holder that is not listed found this block in the prefix index, so it is full.
            total += sum(empty) - (min(empty) if self.pool.refs[block] == len(slots) else 0)
        return total

    def describe(self) -> dict[str, str]:
        return {"kv_layout": self.name, "block_size": str(self.block_size)}

    def check(self) -> None:
        self.pool.check(self.blocks)
        size = self.block_size
        for slot, blocks in enumerate(self.blocks):
            if not self.filled[slot] <= len(blocks) * size >= self.room[slot]:
                raise IntegrityError(
                    f"slot {slot} has {len(blocks)} blocks of {size} tokens, but {self.filled[slot]} tokens are in use "
                    f"and {self.room[slot]} can be written."
                )
            positions = np.arange(len(blocks) * size)
            run = int(self.run[slot])
            places = self.table[slot, positions // run] + positions % run
            wanted = np.repeat(np.array(blocks, np.int64) * size, size) + positions % size
            if not np.array_equal(places, wanted):
                raise IntegrityError(f"the table's row of slot {slot} does not lead to its blocks.")

    def _as_blocks(self, slot: int) -> None:
        """Called before the blocks of a sequence change one by one."""

    def _place(self, slot: int, blocks: list[int], filled: int) -> None:
        """Give a slot these blocks, by a table row with one entry each."""
        work = self.work
        begin = work.now()
        self.blocks[slot] = blocks
        self.touched.add(slot)
        self.table[slot, : len(blocks)] = np.array(blocks, np.int64) * self.block_size
        work.table_s += work.now() - begin
        work.table_bytes += len(blocks) * self.table.itemsize
        self.run[slot] = self.block_size
        self.room[slot] = len(blocks) * self.block_size
        self.filled[slot] = filled

    def _copy(self, source: int, target: int, tokens: int) -> None:
        if source != target:  # the cached block that was evicted to make room may be the very one that is copied
            size = self.block_size
            self._moves.append(Move(source * size, target * size, tokens))

    def _leave_split(self, slot: int, block: int) -> None:
        if block in self._split:
            slots = self._split[block][1]
            slots.discard(slot)
            if not slots:
                del self._split[block]
