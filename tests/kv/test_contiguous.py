"""Contiguous: what is reserved, what falls between the runs."""

from __future__ import annotations

import pytest

from octavo.errors import IntegrityError
from octavo.kv.usage import Usage
from octavo.kv.view import Move
from tests.kv.memory import PLAN, Memory, cache, contents


def test_max_len_reserves_the_longest_run_for_everyone() -> None:
    kv = cache("contiguous", capacity=70, max_model_len=32)
    assert kv.longest == 32
    assert kv.admit(0, [1] * 3, expected=5, limit=5) == 0
    assert kv.admit(1, [1] * 30, expected=31, limit=32) == 0
    assert kv.admit(2, [1], expected=1, limit=2) is None
    kv.computed(0, 3)
    kv.computed(1, 30)
    assert kv.usage() == Usage(70, reserved=64, used=33, wasted_inside=31, wasted_outside=6, shared=0, cached=0)
    assert kv.extend(0, 32)
    assert not kv.extend(0, 33)
    view = kv.view(PLAN)
    assert view.table.shape == (8, 1)
    assert (view.table[0, 0], view.run[0], view.table[1, 0], view.run[1]) == (0, 32, 32, 32)
    kv.release(0)
    assert kv.admit(2, [1], expected=1, limit=2) == 0
    kv.check()


def test_request_reserves_what_each_may_need_and_leaves_holes() -> None:
    kv = cache("contiguous", contiguous_reserve="request", capacity=40, max_model_len=40)
    for slot, limit in enumerate([10, 5, 10, 5, 10]):
        assert kv.admit(slot, [1] * 4, expected=4, limit=limit) == 0
    assert kv.usage() == Usage(40, reserved=40, used=0, wasted_inside=40, wasted_outside=0, shared=0, cached=0)
    kv.release(0)
    kv.release(2)
    kv.release(4)
    # Holes: 0..9, 15..24, 30..39. Only one of them can be reached by the next sequence.
    assert kv.usage() == Usage(40, reserved=10, used=0, wasted_inside=10, wasted_outside=20, shared=0, cached=0)
    assert kv.admit(0, [1], expected=1, limit=11) is None, "30 tokens are free, but no 11 of them together"
    assert kv.admit(0, [1], expected=1, limit=10) == 0
    assert kv.view(PLAN).table[0, 0] == 0, "first fit"
    kv.release(1)
    # 10..14 joins 15..24.
    assert kv.usage().wasted_outside == 10
    assert kv.admit(1, [1], expected=1, limit=15) == 0
    assert kv.view(PLAN).table[1, 0] == 10
    kv.check()
    for slot in range(5):
        kv.release(slot)
    assert kv.usage() == Usage(40, reserved=0, used=0, wasted_inside=0, wasted_outside=0, shared=0, cached=0)
    assert kv.admit(0, [1], expected=1, limit=40) == 0


def test_a_hole_is_joined_on_both_sides() -> None:
    kv = cache("contiguous", contiguous_reserve="request", capacity=30, max_model_len=30)
    for slot in range(3):
        kv.admit(slot, [1], expected=1, limit=10)
    for slot in (0, 2, 1):
        kv.release(slot)
        kv.check()
    assert kv.admit(0, [1], expected=1, limit=30) == 0


def test_a_request_is_never_given_more_than_the_longest_run() -> None:
    kv = cache("contiguous", contiguous_reserve="request", capacity=30, max_model_len=20)
    assert kv.admit(0, [1], expected=1, limit=1000) == 0
    assert kv.usage().reserved == 20
    assert kv.admit(1, [1] * 21, expected=21, limit=21) is None


def test_a_fork_copies_into_a_run_of_its_own() -> None:
    kv = cache("contiguous", contiguous_reserve="request", capacity=30, max_model_len=30)
    memory = Memory(kv)
    tokens = [1, 2, 3, 4]
    kv.admit(0, tokens, expected=10, limit=10)
    memory.write(0, 0, tokens, 4)
    assert kv.fork(0, 1, [*tokens, 6])
    assert kv.layout.take_moves() == (Move(0, 10, 4),)
    assert kv.fork(0, 2, [1, 2])
    assert not kv.fork(0, 3, tokens)
    assert kv.usage() == Usage(30, reserved=30, used=10, wasted_inside=20, wasted_outside=0, shared=0, cached=0)
    memory.prepare()
    assert memory.read(2, 2) == contents([1, 2])
    kv.check()


@pytest.mark.parametrize(
    ("hole", "message"),
    [((0, 31), "the arena at 40"), ((12, 28), "tokens 10 to 12 of the arena are lost"), ((5, 35), "held twice")],
)
def test_the_integrity_check_finds_lost_and_doubled_places(hole: tuple[int, int], message: str) -> None:
    kv = cache("contiguous", contiguous_reserve="request", capacity=40, max_model_len=40)
    if hole[0]:
        kv.admit(0, [1], expected=1, limit=10)
    kv.check()
    kv.layout._holes = [hole]  # type: ignore[attr-defined]
    with pytest.raises(IntegrityError, match=message):
        kv.check()
