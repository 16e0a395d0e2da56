"""Slow block management: what sequences hold stays theirs whatever is moved, and lies in order after a compaction."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.paged import Paged
from octavo.ladder.rebuilt import RebuiltPaged, scattered

SLOTS, BLOCK, LONGEST, BLOCKS, EVERY = 4, 8, 64, 24, 3


class Memory:
    """Token places. Each token that a step writes is another number, which later steps must find again."""

    def __init__(self) -> None:
        self.layout = RebuiltPaged(BLOCKS * BLOCK, SLOTS, LONGEST, BLOCK, EVERY)
        scattered(self.layout, seed=1)
        self.cells = np.zeros(BLOCKS * BLOCK, np.int64)
        self.written: list[list[int]] = [[] for _ in range(SLOTS)]
        self.lengths = [0] * SLOTS
        self.tokens = 0

    def grow(self, slot: int, by: int) -> None:
        length = self.lengths[slot] + by
        layout = self.layout
        if layout.extend(slot, length) if self.lengths[slot] else layout.admit(slot, length, length, LONGEST):
            self.lengths[slot] = length

    def release(self, slot: int) -> None:
        self.layout.release(slot)
        self.lengths[slot] = 0
        self.written[slot] = []

    def step(self) -> int:
        """Moves, reads and writes of a step. Returns how many moves there were."""
        moves = self.layout.take_moves()
        for move in moves:
            self.cells[move.target : move.target + move.tokens] = self.cells[move.source : move.source + move.tokens].copy()
        for slot, (written, length) in enumerate(zip(self.written, self.lengths, strict=True)):
            places = self.places(slot, length)
            assert self.cells[places[: len(written)]].tolist() == written
            for place in places[len(written) :]:
                self.tokens += 1
                self.cells[place] = self.tokens
                written.append(self.tokens)
            self.layout.filled[slot] = length
        self.layout.check()
        return len(moves)

    def places(self, slot: int, length: int) -> np.ndarray:
        positions = np.arange(length)
        return self.layout.table[slot, positions // BLOCK] + positions % BLOCK


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(0, SLOTS - 1), st.integers(1, 30)),
        st.tuples(st.just("release"), st.integers(0, SLOTS - 1), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS)
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost(actions: list[tuple[str, int, int]]) -> None:
    memory = Memory()
    for action, slot, by in actions:
        if action == "grow":
            memory.grow(slot, by)
        elif action == "release":
            memory.release(slot)
        else:
            memory.step()
    for _ in range(EVERY):
        memory.step()


def test_a_compaction_puts_sequence_after_sequence() -> None:
    memory = Memory()
    for slot in range(SLOTS):
        memory.grow(slot, 9 + slot)
    moves = [memory.step() for _ in range(EVERY)]
    assert moves[:2] == [0, 0]
    assert moves[2] > 0
    places = np.concatenate([memory.layout.table[slot, :2] for slot in range(SLOTS)])
    assert places.tolist() == list(range(0, 8 * BLOCK, BLOCK))
    assert memory.layout.work.compacted_tokens == moves[2] * BLOCK
    memory.grow(0, 8)  # a third block, block 8, which belongs between blocks 1 and 2: seven blocks in a cycle, one of them twice
    assert [memory.step() for _ in range(EVERY)] == [0, 0, 8]


def test_tables_are_written_whole_in_every_step() -> None:
    memory = Memory()
    memory.grow(0, 33)
    memory.grow(1, 3)
    memory.step()
    memory.layout.work.clear()
    memory.step()
    assert memory.layout.work.table_bytes == SLOTS * 5 * 4
    assert memory.layout.touched == set(range(SLOTS))


def test_fresh_blocks_are_scattered() -> None:
    layout = Paged(64 * BLOCK, SLOTS, 64 * BLOCK, BLOCK)
    scattered(layout, seed=0)
    assert layout.admit(0, 32 * BLOCK, 0, 0)
    assert np.count_nonzero(np.diff(layout.table[0, :32]) == BLOCK) < 4
    layout.check()
