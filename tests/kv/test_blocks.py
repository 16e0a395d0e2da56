"""BlockPool and its free lists, beside plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv import blocks as blocks_module
from octavo.kv.blocks import BlockPool, FreeExtents


def runs_in(free: set[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive numbers: start and length."""
    return [(b, next(n for n in range(1, len(free) + 1) if b + n not in free)) for b in sorted(free) if b - 1 not in free]


@settings(deadline=None, max_examples=200)
@given(
    total=st.integers(0, 40),
    operations=st.lists(st.tuples(st.sampled_from(["take", "run", "give", "one"]), st.integers(0, 1000)), max_size=60),
)
def test_extents_are_a_set_of_blocks_that_finds_runs(total: int, operations: list[tuple[str, int]]) -> None:
    extents, free = FreeExtents(total), set(range(total))
    for name, number in operations:
        if name == "take" and free:
            shortest = min(length for _, length in runs_in(free))
            taken = extents.take()
            assert any(start <= taken < start + length for start, length in runs_in(free) if length == shortest)
            free.remove(taken)
        elif name == "run":
            length = number % 8 + 1
            lengths = [n for _, n in runs_in(free) if n >= length]
            start = extents.take_run(length)
            assert (start is None) == (not lengths)
            if start is not None:
                assert (start, min(lengths)) in runs_in(free)
                free -= set(range(start, start + length))
        elif name in ("give", "one"):
            taken = sorted(set(range(total)) - free)
            if taken:
                at = number % len(taken)
                back = taken[at : at + 1] if name == "one" else taken[at:][:: -1 if number % 2 else 1]
                extents.give(back)
                free |= set(back)
        assert sorted(extents) == sorted(free)
        assert len(extents) == len(free)
        assert sorted((s, e - s) for s, e in extents.end_of.items()) == runs_in(free)


@settings(deadline=None, max_examples=200)
@given(
    fates=st.lists(st.sampled_from(["held", "free", "cached"]), max_size=30),
    order=st.randoms(use_true_random=False),
    length=st.integers(1, 8),
    lookahead=st.sampled_from([3, 8, 1024]),
)
def test_a_run_is_found_wherever_free_and_old_cached_blocks_make_one(fates, order, length: int, lookahead: int) -> None:  # type: ignore[no-untyped-def]
    before, blocks_module.LOOKAHEAD = blocks_module.LOOKAHEAD, lookahead
    try:
        pool = BlockPool(len(fates), runs=True)
        evicted: list[int] = []
        pool.on_evict = evicted.append
        for _ in fates:
            pool.take()
        release = [b for b, fate in enumerate(fates) if fate != "held"]
        order.shuffle(release)
        for block in release:
            if fates[block] == "cached":
                pool.offer(block)
            pool.drop([block])
        free = {b for b in release if fates[b] == "free"}
        old = [b for b in release if fates[b] == "cached"][:lookahead]
        possible = any(n >= length for _, n in runs_in(free | set(old)))
        start = pool.take_run(length)
        assert (start is not None) == possible
        if start is None:
            assert not evicted
        else:
            run = set(range(start, start + length))
            assert run <= free | set(old)
            assert set(evicted) == run - free
            assert not evicted or not any(n >= length for _, n in runs_in(free)), "a free run is taken first"
        held = [[b for b, fate in enumerate(fates) if fate == "held"]]
        pool.check([*held, list(range(start, start + length)) if start is not None else []])
    finally:
        blocks_module.LOOKAHEAD = before


@pytest.mark.parametrize("runs", [False, True])
def test_cached_blocks_are_taken_oldest_first_and_only_when_none_is_free(runs: bool) -> None:
    pool = BlockPool(4, runs=runs)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    a, b, c, d = (pool.take() for _ in range(4))
    for block in (a, b, c):
        pool.offer(block)
    pool.drop([c, a, b, d])
    assert pool.available == 4
    assert pool.take() == d
    assert evicted == []
    pool.touch(c)
    pool.hold(a)
    assert [pool.take(), pool.take()] == [b, c]
    assert evicted == [b, c]
    assert pool.available == 0
    pool.check([[a, b, c, d]])


def test_a_pool_without_runs_says_so() -> None:
    with pytest.raises(RuntimeError, match="without runs"):
        BlockPool(4).take_run(2)
