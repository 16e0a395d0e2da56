"""Layout "contiguous": a sequence is one run of consecutive tokens."""

from __future__ import annotations

import numpy as np

from octavo.errors import IntegrityError
from octavo.kv.compaction import Compaction
from octavo.kv.layout import Layout
from octavo.kv.run_space import RunSpace
from octavo.kv.runs import Run
from octavo.kv.usage import Usage
from octavo.kv.view import Move

RESERVES = ("max-len", "request", "grow")
HASH_UNIT = 16
"""Tokens that the prefix index hashes together: the shortest prefix that is found."""
LEAST_GROWTH = 16
"""Places that a run must gain where other runs have to be moved for it: otherwise, in a full arena, every step would."""


class Contiguous(Layout):
    """One run per sequence; token t lies at the run's start + t.

    reserve "max-len": every run has ``max_model_len`` tokens, at a multiple of that. "request": a run has the tokens that its
    sequence may need in the end, ``limit``, and goes into the first hole that is long enough. "grow": a run begins with the next
    power of two; when it is full it grows into the hole behind it, or is copied into one of twice its length.

    The holes between runs of different lengths are this layout's external fragmentation. ``compaction`` joins them when a
    sequence does not fit although they would do together; "max-len" has no such holes, and no compaction.

    A run that is released with units on offer is kept in the hole that it leaves. A sequence that begins with its tokens, or with
    those of a live run, has them copied, unless it wants all of a kept run and has room behind it: then it takes that run over.
    ``fork`` copies too.

    unit: tokens that the prefix index hashes together.
    """

    name = "contiguous"
    shares = True
    block_size = 0

    def __init__(
        self,
        capacity: int,
        slots: int,
        max_model_len: int,
        reserve: str,
        unit: int = HASH_UNIT,
        compaction: str | None = None,
        slice_tokens: int = 1,
    ):
        self.reserve = reserve
        self.unit = unit
        self._longest = min(max_model_len, capacity)
        self._space = space = RunSpace(capacity, unit, self._gone)
        self._compaction = None if compaction is None else Compaction(space, compaction, slice_tokens)
        self._piece = self._compaction.piece if self._compaction is not None and compaction == "incremental" else self._longest
        super().__init__(capacity, slots, -(-self._longest // self._piece))
        self.work = space.work
        self._runs: dict[int, Run] = {}  # by slot
        self._by_serial: dict[int, Run] = {}  # live and kept
        self._serials = 0
        self._span = capacity // unit + 1  # a handle is serial * span + unit

    @property
    def longest(self) -> int:
        return self._longest

    # ---- sequences

    def admit(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        if length > self._longest:
            return False
        source = self._by_serial[shared[-1] // self._span] if reused else None
        limit = max(length, min(limit, self._longest))
        wanted = self._wanted(length, limit)
        place = self._choose(wanted, source, reused)
        if place is None and self.reserve == "grow":
            largest = self._space.holes.largest()
            if largest >= length:
                wanted = min(largest, wanted)
                place = self._choose(wanted, source, reused)
        if place is None:
            return False
        run = Run(self._serial(), slot, place, wanted, limit, length)
        self._put(run, source, reused)
        return True

    def extend(self, slot: int, length: int) -> bool:
        run = self._runs[slot]
        if length > run.length and not (self.reserve == "grow" and length <= run.limit and self._grow(run, length)):
            return False
        if length > run.reach:
            run.reach = length
        return True

    def fork(self, parent: int, child: int, length: int) -> bool:
        source = self._runs[parent]
        place = self._choose(source.length, None, 0)
        if place is None:
            return False
        self._put(Run(self._serial(), child, place, source.length, source.limit, length), source, length)
        return True

    def release(self, slot: int) -> None:
        run = self._runs.pop(slot, None)
        if run is None:
            return
        space, tokens = self._space, min(self.filled[slot], run.moved) if run.sliding else self.filled[slot]
        self.filled[slot] = 0
        space.remove(run)
        if self._compaction is not None:
            self._compaction.left(run)
        run.slot, run.filled, run.length, run.old = -1, tokens, tokens, -1
        kept = range(run.units.start, max(run.units.start, min(run.units.stop, tokens // self.unit)))
        gone, run.units = range(kept.stop, run.units.stop), kept
        self._gone(run, gone)
        if kept:
            space.kept.add(run)

    def make_room(self, length: int, limit: int) -> bool:
        limit = max(length, min(limit, self._longest))
        wanted = length if self.reserve == "grow" else self._wanted(length, limit)
        if self._compaction is None or length > self._longest or wanted > self._space.free:
            return False
        work = self.work
        begin, apart = work.now(), work.evict_s
        made, moved = self._compaction.make_hole(wanted)
        self._show_all(moved)
        work.compaction_s += work.now() - begin - (work.evict_s - apart)
        return made

    def add_moves(self, moves: list[Move]) -> None:
        self._space.moves += moves

    def take_moves(self) -> tuple[Move, ...]:
        if self._compaction is not None:
            self._show_all(self._compaction.next_step())
        moves = self._space.moves
        if not moves:
            return ()
        taken = tuple(moves)
        moves.clear()
        return taken

    # ---- prefixes

    def offer(self, slot: int, index: int) -> int:
        run = self._runs[slot]
        if index not in run.units:
            run.units = range(run.units.start if run.units else index, index + 1)
        return run.serial * self._span + index

    def held(self, handle: int) -> int:
        """Computed tokens of the run behind a handle, from its first on."""
        run = self._by_serial[handle // self._span]
        return run.filled if run.slot < 0 else self.filled[run.slot]

    def offered(self) -> set[int]:
        runs = self._by_serial.values()
        return {run.serial * self._span + unit for run in runs for unit in run.units}

    def withdraw_all(self) -> None:
        self._space.kept.clear()
        self._by_serial = {run.serial: run for run in self._runs.values()}
        for run in self._runs.values():
            run.units = range(0)

    # ---- looking at it

    @property
    def table_entries(self) -> int:
        return sum(-(-run.length // self._piece) if run.sliding else 1 for run in self._runs.values())

    def usage(self) -> Usage:
        space = self._space
        reserved = self.capacity - space.free
        used = sum(self.filled)
        whole = self.reserve == "max-len"
        return Usage(
            capacity=self.capacity,
            reserved=reserved,
            used=used,
            wasted_inside=reserved - used,
            wasted_outside=self.capacity % self._longest if whole else space.free - space.holes.largest(),
            shared=0,
            cached=space.kept.tokens,
        )

    def describe(self) -> dict[str, str]:
        described = {"kv_layout": self.name, "contiguous_reserve": self.reserve}
        if self._compaction is not None:
            mode = self._compaction.mode
            most = f", at most {self._compaction.slice_tokens} tokens a step" if mode == "incremental" else ""
            described["compaction"] = mode + most
        return described

    def check(self) -> None:
        self._space.check()
        if self._space.live != {run.serial: run for run in self._runs.values()}:
            raise IntegrityError("the runs of the slots are not those that take up space.")
        for slot, filled in enumerate(self.filled):
            run = self._runs.get(slot)
            if run is None:
                if filled:
                    raise IntegrityError(f"slot {slot} has {filled} tokens in use, but no run.")
                continue
            if run.slot != slot or not filled <= run.reach <= run.length <= self._longest:
                raise IntegrityError(f"slot {slot} has {filled} tokens in use in a run of {run.length}, {run.reach} handed out.")
            positions = np.arange(run.length)
            places = self.table[slot, positions // self.run[slot]] + positions % self.run[slot]
            wanted = np.where(positions < run.moved, run.start, run.old) if run.sliding else run.start
            if not np.array_equal(places, wanted + positions):
                raise IntegrityError(f"the table's row of slot {slot} does not lead to its run.")
        kept = {run.serial: run for run in self._space.kept}
        if self._by_serial != self._space.live | kept:
            raise IntegrityError("runs are known by number that are neither live nor kept.")

    # ---- within

    def _wanted(self, length: int, limit: int) -> int:
        """Places that a new run should have."""
        if self.reserve == "max-len":
            return self._longest
        return limit if self.reserve == "request" else min(1 << (length - 1).bit_length(), limit)

    def _choose(self, length: int, source: Run | None, reused: int) -> int | None:
        """Where a new run goes: where its prefix lies already, if that run loses one token at most, which is computed again,
        and no other is disturbed that could be spared; else where kept runs are disturbed least."""
        space, aligned = self._space, self.reserve == "max-len"
        if source is None or source.slot >= 0:
            best = space.find(length, aligned)
            return None if best is None else best[1]
        before = source.used
        space.kept.touch(source)  # what is wanted goes last
        best = space.find(length, aligned)
        if best is None:
            source.used = before
            return None
        end = source.start + source.filled
        if source.filled - reused <= 1 and space.holes.end_of(source.start) - source.start >= length:
            ((disturbed, _),) = space.kept.newest((end,), max(0, source.start + length - end))
            if disturbed <= best[0]:
                return source.start
        return best[1]

    def _put(self, run: Run, source: Run | None, reused: int) -> None:
        """Make a new run live, with its first tokens from the source."""
        space, slot = self._space, run.slot
        if source is not None and source.slot < 0 and source.start == run.start:
            self._take_over(run, source, reused)
        pieces = () if source is None else tuple(source.pieces(reused))
        space.put(run)
        space.copy(pieces, run.start)
        self._runs[slot] = self._by_serial[run.serial] = run
        self.filled[slot] = reused
        self._show(run)

    def _take_over(self, run: Run, source: Run, reused: int) -> None:
        """A new run begins where a kept one does: it is that one from here on, and goes on offering what it uses of it."""
        self._space.kept.remove(source)
        run.serial = source.serial
        run.units = range(source.units.start, max(source.units.start, min(source.units.stop, reused // self.unit)))
        for unit in range(run.units.stop, source.units.stop):
            self.on_evict(source.serial * self._span + unit)

    def _grow(self, run: Run, length: int) -> bool:
        space, work = self._space, self.work
        begin, apart = work.now(), work.evict_s + work.compaction_s
        wanted = min(max(2 * run.length, length), run.limit)
        behind = space.behind(run)
        if run.length + behind >= wanted:
            space.lengthen(run, wanted)
        elif (found := space.find(wanted, False)) is not None:
            work.grown_tokens += run.reach
            space.relocate(run, found[1], wanted)
            if self._compaction is not None:
                self._compaction.left(run)
        elif run.length + behind >= length:
            space.lengthen(run, run.length + behind)
        elif not self._make_room_behind(run, length, wanted):
            return False
        self._show(run)
        work.extend_s += work.now() - begin - (work.evict_s + work.compaction_s - apart)
        return True

    def _make_room_behind(self, run: Run, length: int, wanted: int) -> bool:
        """Let a run grow by moving others: not to all that it wants, if that would leave nothing for the next to grow."""
        space, work, compaction = self._space, self.work, self._compaction
        fair = min(wanted - run.length, space.free // len(self._runs))
        room = max(length - run.length, fair, min(LEAST_GROWTH, run.limit - run.length))
        if compaction is None or room > space.free:
            return False
        begin, apart = work.now(), work.evict_s
        self._show_all(compaction.make_room_behind(run, room))
        space.lengthen(run, run.length + room)
        work.compaction_s += work.now() - begin - (work.evict_s - apart)
        return True

    def _serial(self) -> int:
        self._serials += 1
        return self._serials

    def _gone(self, run: Run, units: range) -> None:
        for unit in units:
            self.on_evict(run.serial * self._span + unit)
        if not run.units:
            self._by_serial.pop(run.serial, None)

    def _show_all(self, runs: list[Run]) -> None:
        for run in runs:
            self._show(run)

    def _show(self, run: Run) -> None:
        """Write the table's row of a live run."""
        slot, entries = run.slot, 1
        self.touched.add(slot)
        if run.sliding:
            first = np.arange(0, run.length, self._piece)
            entries = len(first)
            self.table[slot, :entries] = first + np.where(first < run.moved, run.start, run.old)
            self.run[slot] = self._piece
        else:
            self.table[slot, 0] = run.start
            self.run[slot] = run.length
        self.work.table_bytes += entries * self.table.itemsize
