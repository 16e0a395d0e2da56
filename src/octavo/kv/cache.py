"""KVCache: the scheduler's door to memory. Sequences are named by slot; where their tokens lie stays behind this door."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import IntegrityError
from octavo.kv.arena import Arena
from octavo.kv.layout import Layout
from octavo.kv.prefix import Chain, PrefixIndex, PrefixStats
from octavo.kv.seen import SeenPrefixes
from octavo.kv.swap import Swapped, SwapSpace, after, copies, places
from octavo.kv.usage import Usage
from octavo.kv.view import Int32s, KVView
from octavo.kv.work import KVWork, sampling
from octavo.scheduler.plan import StepPlan
from octavo.units import format_bytes


@dataclass(slots=True)
class _Sequence:
    tokens: list[int]
    chain: Chain | None  # None without a prefix index
    offered: int  # units that were compared with the index, and entered where they were new


class _Snapshot:
    """A layout's tables as they were, and the slots whose rows have changed since."""

    def __init__(self, layout: Layout):
        self.table = layout.table.copy()
        self.run = layout.run.copy()
        self.stale: set[int] = set()

    def of(self, layout: Layout) -> tuple[Int32s, Int32s]:
        """Brought up to date."""
        for slot in self.stale:
            self.table[slot] = layout.table[slot]
            self.run[slot] = layout.run[slot]
        self.stale.clear()
        return self.table, self.run


class KVCache:
    """Owns the arena, the layout that places sequences in it, the index of prefixes that can be shared (None: off), and the space
    for what preempted sequences leave behind (None: they leave nothing).

    Slots are 0 .. slots - 1, as many as the layout was made for. A call that does not fit changes nothing, except that an
    admission that waits may have others moved (``Layout.make_room``); tried again step by step, it fits. ``tokens`` is always
    the caller's own list, to which it only appends: the cache keeps it and hashes later blocks from it.
    """

    def __init__(self, layout: Layout, arena: Arena, prefix: PrefixIndex | None, swap: SwapSpace | None = None):
        self.layout = layout
        self.arena = arena
        self.prefix = prefix
        self.swap = swap
        self.swapped_out_tokens = self.swapped_in_tokens = 0  # since start
        self._sequences: list[_Sequence | None] = [None] * len(layout.filled)
        self._snapshots: list[_Snapshot] = []
        self._refused: Chain | None = None  # of the sequence that did not fit last time: it will be tried again
        self._stats = PrefixStats()
        self._seen = SeenPrefixes()
        self._every, self._offers = 1 if prefix is None else sampling(prefix.unit), 0
        if prefix is not None:
            layout.on_evict = prefix.forget

    @property
    def work(self) -> KVWork:
        """What the cache did since this was last cleared."""
        return self.layout.work

    @property
    def capacity(self) -> int:
        """Tokens that the arena has."""
        return self.layout.capacity

    @property
    def block_size(self) -> int:
        """Tokens in a block; 0 where the layout has none."""
        return self.layout.block_size

    @property
    def longest(self) -> int:
        """The most tokens that one sequence, alone, can hold."""
        return self.layout.longest

    @property
    def prefix_stats(self) -> PrefixStats:
        """Counters of prefix caching; without an index, what it could have found alone is counted."""
        return self._stats

    def admit(self, slot: int, tokens: list[int], *, expected: int, limit: int, whole: bool = False) -> int | None:
        """Start a sequence in a slot that holds nothing, with room for all of ``tokens``.

        expected: the length that it will reach, as far as one can tell: where to put it is chosen by this.
        limit:    the length that it will never exceed.
        whole:    make room for ``limit`` tokens at once, so that no ``extend`` can fail.
        Returns how many of its first tokens already have their keys and values (the caller computes the rest, at least one), or
        None where it does not fit.
        """
        if self._sequences[slot] is not None:
            raise ValueError(f"slot {slot} already holds a sequence.")
        length = max(len(tokens), limit) if whole else len(tokens)
        work, prefix = self.work, self.prefix
        if prefix is None:
            if not self._place(slot, length, expected, limit, (), 0) and not (
                self.layout.make_room(length, limit) and self._place(slot, length, expected, limit, (), 0)
            ):
                return None
            self._count(tokens, 0, 0, None)
            self._sequences[slot] = _Sequence(tokens, None, 0)
            return 0
        begin = work.now()
        chain = self._refused
        if chain is None or chain.tokens is not tokens:
            chain = Chain(tokens, prefix.unit)
        shared, reused = self._match(prefix, chain, length)
        work.match_s += work.now() - begin
        if not self._place(slot, length, expected, limit, shared, reused):
            if not self.layout.make_room(length, limit):
                self._refused = chain
                return None
            shared, reused = self._match(prefix, chain, length)  # making room may have cost what was found before
            self._place(slot, length, expected, limit, shared, reused)
        self._refused = None
        self._count(tokens, reused, prefix.unit, chain)
        self._sequences[slot] = _Sequence(tokens, chain, 0 if prefix.several else reused // prefix.unit)
        return reused

    def extend(self, slot: int, length: int) -> bool:
        """Make room so that positions below ``length`` can be written."""
        return self.layout.extend(slot, length)

    def computed(self, slot: int, length: int) -> None:
        """Positions below ``length``, never fewer than before, hold keys and values. Full blocks can be shared from here on."""
        self.layout.filled[slot] = length
        if self.prefix is not None:
            sequence = self._sequences[slot]
            if sequence is not None and length // self.prefix.unit > sequence.offered:
                self._offer(slot, sequence, self.prefix, length)

    def fork(self, parent: int, child: int, tokens: list[int]) -> bool:
        """Start a sequence in slot ``child``, which holds nothing, with room for all of ``tokens``. Those that the parent has
        computed must begin as the parent's do: their keys and values are there already."""
        source = self._sequences[parent]
        if source is None or self._sequences[child] is not None:
            raise ValueError(f"slot {parent} holds no sequence to fork from, or slot {child} already holds one.")
        length = min(len(tokens), len(source.tokens), self.layout.filled[parent])
        if tokens[:length] != source.tokens[:length]:
            raise ValueError(f"the fork in slot {child} begins with other tokens than the parent in slot {parent} has computed.")
        if not self.layout.fork(parent, child, length):
            return False
        if len(tokens) > length and not self.layout.extend(child, len(tokens)):
            self.layout.release(child)
            return False
        if self.prefix is None or source.chain is None:
            self._sequences[child] = _Sequence(tokens, None, 0)
        else:
            units = length // self.prefix.unit
            chain = Chain(tokens, self.prefix.unit, source.chain.digests[:units])
            self._sequences[child] = _Sequence(tokens, chain, 0 if self.prefix.several else units)
        return True

    def swap_out(self, slot: int) -> Swapped | None:
        """Copy what a sequence has computed to the swap space, before it is released. None where there is no room for it."""
        layout, work, tokens = self.layout, self.work, self.layout.filled[slot]
        if self.swap is None:
            return None
        begin = work.now()
        swapped = self.swap.take(tokens)
        if swapped is not None:
            layout.add_moves(copies(places(layout.table[slot], int(layout.run[slot]), 0, tokens), swapped.pieces))
            work.swapped_out_tokens += tokens
            self.swapped_out_tokens += tokens
        work.swap_s += work.now() - begin
        return swapped

    def swap_in(self, slot: int, swapped: Swapped, cached: int) -> int:
        """Copy back what a sequence, just admitted again, had computed, beyond its ``cached`` first tokens that are there
        already. Returns how many of its tokens have their keys and values now. ``swapped`` is used up."""
        layout, work, tokens = self.layout, self.work, swapped.tokens
        assert self.swap is not None
        begin = work.now()
        if cached < tokens:
            targets = places(layout.table[slot], int(layout.run[slot]), cached, tokens)
            layout.add_moves(copies(after(swapped.pieces, cached), targets))
            work.swapped_in_tokens += tokens - cached
            self.swapped_in_tokens += tokens - cached
        self.swap.give_back(swapped)
        work.swap_s += work.now() - begin
        if cached >= tokens:
            return cached
        self.computed(slot, tokens)
        return tokens

    def forget(self, swapped: Swapped) -> None:
        """Nobody will ask for this again."""
        assert self.swap is not None
        self.swap.give_back(swapped)

    def release(self, slot: int) -> None:
        """Let go of all that a slot holds. The only place where memory returns. Nothing happens where it holds nothing."""
        work = self.work
        begin = work.now()
        sequence = self._sequences[slot]
        if sequence is not None:  # its output may be what the next prompt begins with
            self._seen.see(sequence.tokens[: self.layout.filled[slot]], sequence.chain)
        self.layout.release(slot)
        self._sequences[slot] = None
        work.release_s += work.now() - begin

    def view(self, plan: StepPlan) -> KVView:
        """Placement for one step, with the copies that have become due since the last one."""
        layout = self.layout
        moves = layout.take_moves()  # which may decide on some, and show where they lead
        if not self._snapshots:
            layout.touched.clear()
            return KVView(self.arena, layout.table, layout.run, moves, layout.preparation())
        for snapshot in self._snapshots:
            snapshot.stale |= layout.touched
        layout.touched.clear()
        self._snapshots.reverse()
        table, run = self._snapshots[0].of(layout)
        return KVView(self.arena, table, run, moves, layout.preparation())

    def snapshots(self, on: bool) -> None:
        """Whether views show placement as it was when they were made, so that the next step can be planned while one of them is
        read. A view is good until the second view after it. What a view costs is in proportion to the rows that changed."""
        self._snapshots = [_Snapshot(self.layout), _Snapshot(self.layout)] if on else []

    def usage(self) -> Usage:
        """Where the arena's tokens are."""
        return self.layout.usage()

    @property
    def table_bytes(self) -> int:
        """Bytes of the block tables that are in use."""
        return self.layout.table_entries * self.layout.table.itemsize

    def reset_prefix(self) -> None:
        """Forget every prefix that could be shared; running sequences and the counters are not touched."""
        if self.prefix is not None:
            self.prefix.clear()
            self.layout.withdraw_all()

    def describe(self) -> dict[str, str]:
        """The settings as they really are, name to value."""
        spec = self.arena.spec
        return {
            **self.layout.describe(),
            "enable_prefix_caching": "off" if self.prefix is None else f"on, every {self.prefix.unit} tokens",
            **self._describe_swap(),
            "KV memory": f"{format_bytes(spec.token_bytes * self.capacity)}: {self.capacity} tokens of {spec.token_bytes} bytes "
            f"({spec.dtype})",
        }

    def _describe_swap(self) -> dict[str, str]:
        if self.swap is None:
            return {}
        held = self.swap.tokens
        return {"swap_space": f"{format_bytes(held * self.arena.spec.token_bytes)}: {held} tokens"}

    def check(self) -> None:
        """Raise IntegrityError unless every token place is accounted for and the prefix index agrees with the layout."""
        self.layout.check()
        if self.swap is not None:
            self.swap.check()
        offered, indexed = self.layout.offered(), set() if self.prefix is None else self.prefix.handles()
        if offered != indexed:
            raise IntegrityError(
                f"the layout keeps {sorted(offered - indexed)} for nobody; the prefix index leads to "
                f"{sorted(indexed - offered)}, which the layout does not keep."
            )
        for snapshot in self._snapshots:
            current = [slot for slot in range(len(self.layout.run)) if slot not in snapshot.stale | self.layout.touched]
            rows = np.array_equal(snapshot.table[current], self.layout.table[current])
            if not rows or not np.array_equal(snapshot.run[current], self.layout.run[current]):
                raise IntegrityError("a table's row has changed, and the layout did not say so.")
        for slot, sequence in enumerate(self._sequences):
            if sequence is None and self.layout.filled[slot]:
                raise IntegrityError(f"slot {slot} holds {self.layout.filled[slot]} tokens, but no sequence.")

    def _match(self, prefix: PrefixIndex, chain: Chain, length: int) -> tuple[tuple[int, ...], int]:
        shared, reused = prefix.match(chain)
        usable = self.layout.reusable(length, shared, reused)
        return (shared, reused) if usable == reused else (shared[: -(-usable // prefix.unit)], usable)

    def _place(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...], reused: int) -> bool:
        work = self.work
        begin, apart = work.now(), work.evict_s + work.table_s
        placed = self.layout.admit(slot, length, expected, limit, shared, reused)
        work.allocate_s += work.now() - begin - (work.evict_s + work.table_s - apart)
        return placed

    def _count(self, tokens: list[int], reused: int, unit: int, chain: Chain | None) -> None:
        work = self.work
        begin = work.now()
        self._stats.count(len(tokens), reused, unit, self._seen.see(tokens, chain))
        work.match_s += work.now() - begin

    def _offer(self, slot: int, sequence: _Sequence, prefix: PrefixIndex, length: int) -> None:
        self._offers += 1
        if self._offers % self._every:
            self._enter(slot, sequence, prefix, length)
            return
        work = self.work
        begin = work.now()
        self._enter(slot, sequence, prefix, length)
        work.offer_s += (work.now() - begin) * self._every

    def _enter(self, slot: int, sequence: _Sequence, prefix: PrefixIndex, length: int) -> None:
        chain = sequence.chain
        assert chain is not None
        # The last token may have been computed before its id was known here.
        for i in range(sequence.offered, min(length, len(sequence.tokens)) // prefix.unit):
            digest = chain.digest(i)
            if prefix.several or digest not in prefix:
                prefix.insert(digest, self.layout.offer(slot, i), sequence.tokens)
            sequence.offered = i + 1
