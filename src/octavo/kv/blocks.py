"""BlockPool: the blocks of an arena, who holds them, and which of them are free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import IntegrityError

LOOKAHEAD = 1024
"""How many of the least recently used cached blocks ``take_run`` looks at to make a run."""


class FreeBlocks(Protocol):
    """A set of free blocks."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    def take(self) -> int:
        """Remove any one block; there must be one."""

    def give(self, blocks: list[int]) -> None:
        """Add these."""


class FreeStack:
    """Free blocks in no order: O(1), the block freed last is taken first."""

    def __init__(self, blocks: int):
        self._stack = list(range(blocks - 1, -1, -1))
        self.take = self._stack.pop
        self.give = self._stack.extend

    def __len__(self) -> int:
        return len(self._stack)

    def __iter__(self) -> Iterator[int]:
        return iter(self._stack)


class FreeExtents:
    """Free blocks as maximal runs of consecutive ones: extents ``[start, end)``, merged as soon as they touch.

    Extents are also kept by length. N blocks have at most sqrt(2 N) different lengths, so the sorted list of lengths stays short
    and finding the shortest extent that is long enough is one bisection.
    """

    def __init__(self, blocks: int):
        self.end_of: dict[int, int] = {}
        self.start_of: dict[int, int] = {}
        self._starts: dict[int, dict[int, None]] = {}  # by length; a dict, for its order makes runs reproducible
        self._lengths: list[int] = []
        self._count = 0
        if blocks:
            self._add(0, blocks)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start, end in self.end_of.items():
            yield from range(start, end)

    def take(self) -> int:
        """Remove a block from the shortest extent: long ones are kept for runs."""
        start = next(iter(self._starts[self._lengths[0]]))
        self.cut(start, 1)
        return start

    def take_run(self, length: int) -> int | None:
        """Remove ``length`` consecutive blocks from the shortest extent that has them; the first one, or None."""
        i = bisect_left(self._lengths, length)
        if i == len(self._lengths):
            return None
        start = next(iter(self._starts[self._lengths[i]]))
        self.cut(start, length)
        return start

    def take_longest(self, most: int) -> tuple[int, int]:
        """Remove up to ``most`` consecutive blocks: all of them from the shortest extent that has as many, else the longest
        extent. There must be one. Returns the first block, and how many."""
        length = min(most, self._lengths[-1])
        start = self.take_run(length)
        assert start is not None
        return start, length

    def give(self, blocks: list[int]) -> None:
        """Add blocks; where they come in consecutive order, up or down, that is one step for all of them."""
        i = 0
        while i < len(blocks):
            low = high = blocks[i]
            i += 1
            while i < len(blocks) and (blocks[i] == low - 1 or blocks[i] == high + 1):
                low, high = min(low, blocks[i]), max(high, blocks[i])
                i += 1
            self._join(low, high + 1)

    def _join(self, start: int, end: int) -> None:
        before = self.start_of.get(start)
        if before is not None:
            self._remove(before, start)
            start = before
        after = self.end_of.get(end)
        if after is not None:
            self._remove(end, after)
            end = after
        self._add(start, end)

    def cut(self, start: int, length: int) -> None:
        """Remove ``length`` blocks from the front of the extent that begins at ``start``."""
        end = self.end_of[start]
        self._remove(start, end)
        if start + length < end:
            self._add(start + length, end)

    def _add(self, start: int, end: int) -> None:
        self.end_of[start] = end
        self.start_of[end] = start
        length = end - start
        self._count += length
        starts = self._starts.get(length)
        if starts is None:
            self._starts[length] = {start: None}
            insort(self._lengths, length)
        else:
            starts[start] = None

    def _remove(self, start: int, end: int) -> None:
        del self.end_of[start], self.start_of[end]
        length = end - start
        self._count -= length
        starts = self._starts[length]
        del starts[start]
        if not starts:
            del self._starts[length]
            del self._lengths[bisect_left(self._lengths, length)]


class BlockPool:
    """``blocks`` blocks, named 0, 1, ...; each is held by ``refs[block]`` sequences.

    A block that nobody holds is free, or *cached*: its tokens are still offered to others. Cached blocks count as available; the
    least recently used goes first, and ``on_evict`` hears of it. Every operation is O(1) a block.

    runs: whether ``take_run`` is wanted; keeping free blocks as extents costs a little more.
    """

    def __init__(self, blocks: int, *, runs: bool = False):
        self.blocks = blocks
        self.refs = [0] * blocks
        self.held = 0  # blocks with refs > 0
        self.references = 0  # the sum of refs
        self.offered = bytearray(blocks)
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.on_evict: Callable[[int], None] = lambda block: None
        self._extents = FreeExtents(blocks) if runs else None
        self._free: FreeBlocks = self._extents if self._extents is not None else FreeStack(blocks)

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return self.blocks - self.held

    def take(self) -> int:
        """A block that nobody holds, now held once. There must be one available."""
        if self._free:
            block = self._free.take()
        else:
            block, _ = self.cached.popitem(last=False)
            self._forget(block)
        self.refs[block] = 1
        self.held += 1
        self.references += 1
        return block

    def take_run(self, length: int) -> int | None:
        """The first of ``length`` consecutive blocks, now held once each. Where no so many are free, those of the oldest cached
        blocks are evicted that complete a run. None, and nothing evicted, where they complete none."""
        if self._extents is None:
            raise RuntimeError("this pool was made without runs.")
        if length > self.available:
            return None
        start = self._extents.take_run(length)
        if start is None:
            start = self._evict_for_run(self._extents, length)
            if start is None:
                return None
        self.refs[start : start + length] = [1] * length
        self.held += length
        self.references += length
        return start

    def hold(self, block: int) -> None:
        """One more sequence holds this block, which is held already or cached."""
        if not self.refs[block]:
            del self.cached[block]
            self.held += 1
        self.refs[block] += 1
        self.references += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """One sequence less holds each of these. Cached ones will be evicted in this order."""
        refs, freed = self.refs, []
        for block in blocks:
            refs[block] -= 1
            self.references -= 1
            if not refs[block]:
                self.held -= 1
                if self.offered[block]:
                    self.cached[block] = None
                else:
                    freed.append(block)
        if freed:
            self._free.give(freed)

    def touch(self, block: int) -> None:
        """If cached, evict it last."""
        if block in self.cached:
            self.cached.move_to_end(block)

    def offer(self, block: int) -> None:
        """Keep the tokens of this block, which is held, once it is not held any more."""
        self.offered[block] = 1

    def withdraw(self, block: int) -> None:
        """Stop offering a block that is held, and tell ``on_evict``: it is about to be written."""
        if self.offered[block]:
            self._forget(block)

    def withdraw_all(self) -> None:
        """Stop offering anything, without telling ``on_evict``. Cached blocks become free."""
        self.offered = bytearray(self.blocks)
        self._free.give(list(self.cached))
        self.cached.clear()

    def check(self, holding: Iterable[list[int]]) -> None:
        """Raise IntegrityError unless the books balance. holding: the blocks of each sequence, as the caller knows them."""
        refs = np.array(self.refs)
        held = self._count(chain.from_iterable(holding))
        for block in np.flatnonzero(refs != held):
            raise IntegrityError(f"block {block} has reference count {refs[block]}, but {held[block]} sequences hold it.")
        counted = int(np.count_nonzero(refs)), int(refs.sum())
        if (self.held, self.references) != counted:
            raise IntegrityError(
                f"the pool counts {self.held} held blocks and {self.references} references; by the blocks themselves there are "
                f"{counted[0]} and {counted[1]}."
            )
        free, cached, offered = self._count(self._free), self._count(self.cached), np.frombuffer(self.offered, np.uint8)
        listed = free + cached
        for block in np.flatnonzero(listed != (refs == 0)):
            raise IntegrityError(
                f"block {block} with reference count {refs[block]} is listed {listed[block]} times as free or cached."
            )
        for block in np.flatnonzero(cached & ~offered):
            raise IntegrityError(f"block {block} is cached, but not offered to anyone.")
        for block in np.flatnonzero(free & offered):
            raise IntegrityError(f"block {block} is free, but still offered.")
        if len(self._free) + len(self.cached) != self.available:
            raise IntegrityError(
                f"the pool counts {len(self._free)} free and {len(self.cached)} cached blocks; {self.available} are not held."
            )
        if self._extents is not None:
            for end in self._extents.end_of.values():
                if end in self._extents.end_of:
                    raise IntegrityError(f"two free runs meet at block {end} and are not joined.")

    def _count(self, blocks: Iterable[int]) -> npt.NDArray[np.int64]:
        """How often each block occurs."""
        return np.bincount(np.fromiter(blocks, np.int64), minlength=self.blocks)

    def _forget(self, block: int) -> None:
        self.offered[block] = 0
        self.on_evict(block)

    def _evict_for_run(self, free: FreeExtents, length: int) -> int | None:
        """Find ``length`` consecutive blocks that are free or among the oldest cached ones, evict the latter, take them all."""
        end_of: dict[int, int] = {}  # maximal spans of free and old cached blocks that hold at least one of the latter
        start_of: dict[int, int] = {}
        for block in islice(self.cached, LOOKAHEAD):
            start, end = block, block + 1
            if start in start_of:
                start = start_of.pop(start)
                del end_of[start]
            else:
                start = free.start_of.get(start, start)
            if end in end_of:
                end = end_of.pop(end)
                del start_of[end]
            else:
                end = free.end_of.get(end, end)
            end_of[start], start_of[end] = end, start
            if end - start >= length:
                # Either side of this block alone was too short, so a window at the start of the span holds it.
                return self._evict_window(free, start, length)
        return None

    def _evict_window(self, free: FreeExtents, start: int, length: int) -> int:
        evicted = [block for block in range(start, start + length) if block in self.cached]
        for block in evicted:
            del self.cached[block]
            self._forget(block)
        free.give(evicted)
        free.cut(start, length)
        return start
