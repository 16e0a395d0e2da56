"""Layout "contiguous": a sequence is one run of consecutive tokens, reserved when it is admitted."""

from __future__ import annotations

from bisect import bisect_left

from octavo.errors import IntegrityError
from octavo.kv.layout import Layout
from octavo.kv.usage import Usage
from octavo.kv.view import Move

RESERVES = ("max-len", "request")


class Contiguous(Layout):
    """One run per sequence; token t lies at the run's start + t. A run never grows.

    reserve "max-len": every run has ``max_model_len`` tokens. "request": a run has the tokens that its sequence may need in the
    end, ``limit``, and goes into the first hole that is long enough. The holes between runs of different lengths are this
    layout's external fragmentation: a sequence may not fit although the free tokens together would do.

    Nothing is shared; ``fork`` copies.
    """

    name = "contiguous"
    shares = False
    block_size = 1  # places are taken token by token

    def __init__(self, capacity: int, slots: int, max_model_len: int, reserve: str):
        super().__init__(capacity, slots, 1)
        self.reserve = reserve
        self._longest = min(max_model_len, capacity)
        self._runs: dict[int, tuple[int, int]] = {}  # by slot: start and length
        self._holes: list[tuple[int, int]] = [(0, capacity)]  # start and length, in order of address, never touching
        self._moves: list[Move] = []

    @property
    def longest(self) -> int:
        return self._longest

    def admit(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        if length > self._longest:
            return False
        whole = self.reserve == "max-len"
        return self._place(slot, self._longest if whole else max(length, min(limit, self._longest)))

    def extend(self, slot: int, length: int) -> bool:
        return length <= self._runs[slot][1]

    def fork(self, parent: int, child: int, length: int) -> bool:
        start, run = self._runs[parent]
        if not self._place(child, run):
            return False
        self._moves.append(Move(start, self._runs[child][0], length))
        self.filled[child] = length
        return True

    def release(self, slot: int) -> None:
        if slot not in self._runs:
            return
        start, length = self._runs.pop(slot)
        self.filled[slot] = 0
        holes = self._holes
        i = bisect_left(holes, (start, 0))
        if i < len(holes) and holes[i][0] == start + length:
            length += holes.pop(i)[1]
        if i and sum(holes[i - 1]) == start:
            start, before = holes[i - 1]
            holes[i - 1] = (start, before + length)
        else:
            holes.insert(i, (start, length))

    def take_moves(self) -> tuple[Move, ...]:
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    @property
    def table_entries(self) -> int:
        return len(self._runs)

    def usage(self) -> Usage:
        reserved = sum(length for _, length in self._runs.values())
        used = sum(self.filled)
        if self.reserve == "max-len":
            outside = self.capacity % self._longest
        else:
            outside = self.capacity - reserved - max((length for _, length in self._holes), default=0)
        return Usage(
            capacity=self.capacity,
            reserved=reserved,
            used=used,
            wasted_inside=reserved - used,
            wasted_outside=outside,
            shared=0,
            cached=0,
        )

    def describe(self) -> dict[str, str]:
        return {"kv_layout": self.name, "contiguous_reserve": self.reserve}

    def check(self) -> None:
        pieces = sorted([*self._runs.values(), *self._holes])
        end = 0
        for start, length in pieces:
            if start != end:
                raise IntegrityError(f"tokens {min(start, end)} to {max(start, end)} of the arena are lost or held twice.")
            end = start + length
        if end != self.capacity:
            raise IntegrityError(f"runs and holes end at token {end}, the arena at {self.capacity}.")
        for (a, length), (b, _) in zip(self._holes, self._holes[1:], strict=False):
            if a + length >= b:
                raise IntegrityError(f"two holes meet at token {b} and are not joined, or are out of order.")
        for slot, filled in enumerate(self.filled):
            start, length = self._runs.get(slot, (0, 0))
            if filled > length or (length and (self.table[slot, 0], self.run[slot]) != (start, length)):
                raise IntegrityError(f"slot {slot} has {filled} tokens in use in a run of {length}, or its table row is wrong.")

    def _place(self, slot: int, length: int) -> bool:
        """Give a slot the front of the first hole that is long enough."""
        for i, (start, hole) in enumerate(self._holes):
            if hole >= length:
                if hole == length:
                    del self._holes[i]
                else:
                    self._holes[i] = (start + length, hole - length)
                self._runs[slot] = (start, length)
                self.touched.add(slot)
                self.table[slot, 0] = start
                self.work.table_bytes += self.table.itemsize
                self.run[slot] = length
                self.filled[slot] = 0
                return True
        return False
