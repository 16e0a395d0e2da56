"""Compaction: what is moved so that a sequence fits, how much of it in one step, and that it comes to an end."""

from __future__ import annotations

import pytest

from octavo.kv.view import Move
from tests.kv.memory import PLAN, SPEC, Memory, cache, contents


def crowded(compaction: str, slice_tokens: int = 1000, filled: tuple[int, ...] = (10, 10, 10), **settings: object):  # type: ignore[no-untyped-def]
    """Runs of 10 places at 10, 30 and 50 in an arena of 60, with so many computed tokens; holes at 0, 20 and 40."""
    kv = cache(
        "contiguous", contiguous_reserve="request", compaction=compaction, compaction_slice=slice_tokens * SPEC.token_bytes,
        capacity=60, max_model_len=60, **settings,
    )  # fmt: skip
    memory = Memory(kv)
    tokens = [[slot] * 10 for slot in range(6)]
    for slot in range(6):
        count = filled[slot // 2] if slot % 2 else 1
        kv.admit(slot, tokens[slot][:count], expected=10, limit=10)
        memory.write(slot, 0, tokens[slot], count)
    for slot in (0, 2, 4):
        kv.release(slot)
    return kv, memory, tokens


def read_back(memory: Memory, tokens: list[list[int]], filled: tuple[int, ...] = (10, 10, 10)) -> None:
    for slot, count in zip((1, 3, 5), filled, strict=True):
        assert memory.read(slot, count) == contents(tokens[slot][:count])


def test_a_pause_slides_every_run_down_in_one_go() -> None:
    kv, memory, tokens = crowded("pause")
    assert kv.admit(0, [9], expected=1, limit=11) == 0
    assert kv.view(PLAN).moves == (Move(10, 0, 10), Move(30, 10, 10), Move(50, 20, 10))
    assert kv.layout.table[[1, 3, 5, 0], 0].tolist() == [0, 10, 20, 30]
    kv, memory, tokens = crowded("pause")
    kv.admit(0, [9], expected=1, limit=30)
    memory.prepare()
    read_back(memory, tokens)
    assert (kv.work.compacted_tokens, kv.usage().wasted_outside) == (30, 0)
    kv.check()


@pytest.mark.parametrize(("filled", "move"), [((9, 2, 9), Move(30, 20, 2)), ((2, 9, 9), Move(10, 0, 2))])
def test_an_incremental_compaction_moves_the_least_that_makes_the_hole(filled: tuple[int, int, int], move: Move) -> None:
    kv, memory, tokens = crowded("incremental", filled=filled)
    assert kv.admit(0, [9], expected=1, limit=20) == 0
    assert kv.layout._space.moves == [move]  # type: ignore[attr-defined]
    assert kv.layout.table[0, 0] == move.target + 10
    memory.prepare()
    read_back(memory, tokens, filled)
    assert kv.work.compacted_tokens == 2
    kv.check()


def test_it_copies_at_most_a_slice_before_each_step() -> None:
    kv, memory, tokens = crowded("incremental", slice_tokens=4)
    moved = []
    for _ in range(20):
        reused = kv.admit(0, [9], expected=1, limit=30)
        kv.check()
        view = memory.prepare()
        moved.append(sum(move.tokens for move in view.moves))
        read_back(memory, tokens)
        if reused is not None:
            break
    assert reused == 0
    assert max(moved) == 4
    # Two runs of 10 tokens: 4, 4, 2 and what that leaves of a slice for the next.
    assert moved == [4, 4, 4, 4, 4]


def test_while_it_slides_a_run_is_shown_in_two_parts_and_goes_on_being_written() -> None:
    kv, memory, tokens = crowded("incremental", slice_tokens=8, filled=(9, 10, 10))
    assert kv.admit(0, [9], expected=1, limit=30) is None
    # Cut at multiples of 2, a quarter of a slice: 8 of 9 tokens are moved, from 10 to 0.
    assert kv.layout.run[1] == 2
    assert kv.layout.table[1, :5].tolist() == [0, 2, 4, 6, 18]
    assert kv.usage().wasted_outside == 30 - 10, "the gap that it closes is nobody's"
    memory.prepare()
    assert kv.extend(1, 10)
    memory.write(1, 9, tokens[1], 10)
    kv.check()
    read_back(memory, tokens)
    assert kv.admit(0, [9], expected=1, limit=30) is None
    assert (kv.layout.run[1], kv.layout.table[1, 0]) == (10, 0)
    memory.prepare()
    read_back(memory, tokens)


def test_what_is_left_of_a_slice_is_cut_at_a_piece() -> None:
    kv, memory, tokens = crowded("incremental", slice_tokens=15)
    assert kv.admit(0, [9], expected=1, limit=30) is None
    # Pieces of 2: ten tokens of the first run, four of the second, and one is not worth a cut.
    assert [move.tokens for move in memory.prepare().moves] == [10, 4]
    kv.check()
    read_back(memory, tokens)
    assert kv.admit(0, [9], expected=1, limit=30) == 0
    memory.prepare()
    read_back(memory, tokens)


def test_a_slide_goes_on_when_nobody_waits_any_more() -> None:
    kv, memory, tokens = crowded("incremental", slice_tokens=4)
    assert kv.admit(0, [9], expected=1, limit=30) is None
    for _ in range(3):
        memory.prepare()
    assert (kv.layout.run[1], kv.layout.table[1, 0]) == (10, 0)
    assert memory.prepare().moves == ()
    read_back(memory, tokens)
    kv.check()


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_run_that_slides_can_be_released_and_forked(prefix_caching: bool) -> None:
    kv, memory, tokens = crowded("incremental", slice_tokens=4, prefix_caching=prefix_caching, hash_unit=4)
    assert kv.admit(0, [9], expected=1, limit=30) is None
    assert kv.fork(1, 2, tokens[1])
    assert kv.layout._space.moves == [Move(10, 0, 4), Move(0, 20, 4), Move(14, 24, 6)]  # type: ignore[attr-defined]
    memory.prepare()
    assert memory.read(2, 10) == contents(tokens[1])
    kv.release(2)
    kv.release(1)
    kv.check()
    assert memory.prepare().moves == (), "nobody is left to slide"
    if prefix_caching:  # what had moved of the one, all of the other
        kept = {(run.start, run.filled) for run in kv.layout._space.kept}  # type: ignore[attr-defined]
        assert (0, 4) in kept
    read_back_two = [memory.read(slot, 10) for slot in (3, 5)]
    assert read_back_two == [contents(tokens[3]), contents(tokens[5])]


def test_nothing_moves_where_the_holes_together_do_not_suffice() -> None:
    for compaction in ("pause", "incremental"):
        kv, memory, _ = crowded(compaction)
        assert kv.admit(0, [9], expected=1, limit=31) is None
        assert memory.prepare().moves == ()
        assert kv.layout.table[[1, 3, 5], 0].tolist() == [10, 30, 50]


@pytest.mark.parametrize("compaction", ["pause", "incremental"])
def test_what_is_kept_gives_way_and_a_prefix_that_went_with_it_is_computed(compaction: str) -> None:
    kv, memory, tokens = crowded(compaction, prefix_caching=True, hash_unit=4)
    kv.release(1)
    assert kv.usage().cached == 10
    # Kept at 10..19; the run at 30 slides over it, to 0.
    assert kv.admit(0, [*tokens[1], 7], expected=40, limit=40) == 0
    assert kv.usage().cached == 0
    memory.prepare()
    kv.check()


@pytest.mark.parametrize("compaction", ["pause", "incremental"])
def test_a_prefix_of_a_run_that_moves_is_copied_from_where_it_is_then(compaction: str) -> None:
    kv, memory, tokens = crowded(compaction, prefix_caching=True, hash_unit=4)
    assert kv.admit(0, [*tokens[1], 7], expected=30, limit=30) == 10
    memory.prepare()
    assert memory.read(0, 10) == contents(tokens[1])
    kv.check()
