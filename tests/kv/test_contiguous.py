"""Contiguous: what is reserved, what falls between the runs, how runs grow, and what is kept of them."""

from __future__ import annotations

import pytest

from octavo.errors import IntegrityError
from octavo.kv.holes import Holes
from octavo.kv.usage import Usage
from octavo.kv.view import Move
from tests.kv.memory import PLAN, Memory, cache, contents


def run(kv, slot: int, tokens: list[int], limit: int, release: bool = True) -> int | None:  # type: ignore[no-untyped-def]
    """Admit, compute, and mostly release; the tokens that were found."""
    reused = kv.admit(slot, tokens, expected=limit, limit=limit)
    if reused is not None:
        kv.computed(slot, len(tokens))
        if release:
            kv.release(slot)
    return reused


def start(kv, slot: int) -> int:  # type: ignore[no-untyped-def]
    return int(kv.layout.table[slot, 0])


# ---- what is reserved


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


@pytest.mark.parametrize("compaction", ["pause", "incremental"])
def test_request_reserves_what_each_may_need_and_leaves_holes(compaction: str) -> None:
    kv = cache("contiguous", contiguous_reserve="request", compaction=compaction, capacity=40, max_model_len=40)
    for slot, limit in enumerate([10, 5, 10, 5, 10]):
        assert kv.admit(slot, [1] * 4, expected=4, limit=limit) == 0
    assert kv.usage() == Usage(40, reserved=40, used=0, wasted_inside=40, wasted_outside=0, shared=0, cached=0)
    kv.release(0)
    kv.release(2)
    kv.release(4)
    # Holes: 0..9, 15..24, 30..39. Only one of them can be reached by the next sequence.
    assert kv.usage() == Usage(40, reserved=10, used=0, wasted_inside=10, wasted_outside=20, shared=0, cached=0)
    assert kv.admit(0, [1], expected=1, limit=31) is None, "30 tokens are free, no 31"
    assert kv.layout.take_moves() == ()
    assert kv.admit(0, [1], expected=1, limit=10) == 0
    assert start(kv, 0) == 0, "first fit"
    kv.release(1)
    # 10..14 joins 15..24.
    assert kv.usage().wasted_outside == 10
    assert kv.admit(1, [1], expected=1, limit=15) == 0
    assert start(kv, 1) == 10
    kv.check()
    for slot in range(5):
        kv.release(slot)
    assert kv.usage() == Usage(40, reserved=0, used=0, wasted_inside=0, wasted_outside=0, shared=0, cached=0)
    assert kv.admit(0, [1], expected=1, limit=40) == 0


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


def test_holes_are_joined_on_both_sides() -> None:
    holes = Holes(30)
    for begin in (0, 10, 20):
        holes.claim(begin, begin + 10)
    assert list(holes) == []
    holes.give(0, 10)
    holes.give(20, 30)
    assert list(holes) == [(0, 10), (20, 30)]
    holes.give(10, 20)
    assert list(holes) == [(0, 30)]
    holes.claim(5, 25)
    assert list(holes) == [(0, 5), (25, 30)]
    assert [holes.end_of(place) for place in (0, 4, 5, 26, 29)] == [5, 5, 5, 30, 30]
    with pytest.raises(IntegrityError, match="tokens 4 to 6 of the arena are claimed, but not free"):
        holes.claim(4, 6)


@pytest.mark.parametrize(
    ("hole", "message"),
    [((0, 31), "the arena at 40"), ((12, 40), "tokens 10 to 12 of the arena are lost"), ((5, 40), "held twice")],
)
def test_the_integrity_check_finds_lost_and_doubled_places(hole: tuple[int, int], message: str) -> None:
    kv = cache("contiguous", contiguous_reserve="request", capacity=40, max_model_len=40)
    if hole[0]:
        kv.admit(0, [1], expected=1, limit=10)
    kv.check()
    holes = kv.layout._space.holes  # type: ignore[attr-defined]
    holes._starts[:], holes._ends[:] = [hole[0]], [hole[1]]
    with pytest.raises(IntegrityError, match=message):
        kv.check()


# ---- grow


def test_a_run_that_grows_begins_with_a_power_of_two_and_doubles() -> None:
    kv = cache("contiguous", contiguous_reserve="grow", capacity=64, max_model_len=40)
    memory = Memory(kv)
    tokens = [1, 2, 3, 4, 5]
    assert kv.admit(0, tokens, expected=5, limit=40) == 0
    assert kv.admit(1, [9], expected=1, limit=2) == 0
    assert kv.usage().reserved == 8 + 1
    memory.write(0, 0, tokens, 5)
    tokens += [6, 7, 8, 9]
    for length in (6, 7, 8):
        assert kv.extend(0, length)
    memory.write(0, 5, tokens, 8)
    # Slot 1 is right behind it, so it is copied.
    assert kv.extend(0, 9)
    assert kv.view(PLAN).moves == (Move(0, 9, 8),)
    assert kv.work.grown_tokens == 8
    assert (start(kv, 0), kv.usage().reserved) == (9, 16 + 1)
    # Nothing is behind it now, so it grows where it is; not beyond what it may ever need.
    assert kv.extend(0, 17)
    assert kv.extend(0, 33)
    assert kv.view(PLAN).moves == ()
    assert (start(kv, 0), kv.usage().reserved) == (9, 40 + 1)
    assert not kv.extend(0, 41)
    kv.check()


def test_a_run_that_cannot_double_takes_what_is_behind_it_and_then_has_others_moved() -> None:
    kv = cache("contiguous", contiguous_reserve="grow", capacity=64, max_model_len=64)
    memory = Memory(kv)
    a, b, c = [1] * 16, [2] * 16, [3] * 8
    for slot, tokens in enumerate((a, b, c)):
        assert kv.admit(slot, tokens, expected=64, limit=64) == 0
        memory.write(slot, 0, tokens, len(tokens))
    # a 0..15, b 16..31, c 32..39; 24 places are free behind c.
    assert kv.extend(0, 17), "no hole of 32, but b and c can go up by 24"
    assert kv.usage().reserved == 32 + 16 + 8
    memory.prepare()
    a.append(1)
    memory.write(0, 16, a, 17)
    for slot, tokens in enumerate((a, b, c)):
        assert memory.read(slot, len(tokens)) == contents(tokens)
    assert kv.work.grown_tokens == 0
    assert kv.work.compacted_tokens == 16 + 8
    kv.check()


def test_a_run_that_has_others_moved_leaves_them_their_share() -> None:
    kv = cache("contiguous", contiguous_reserve="grow", capacity=128, max_model_len=128)
    kv.admit(0, [1] * 64, expected=128, limit=128)
    kv.admit(1, [2] * 4, expected=128, limit=128)
    assert kv.extend(0, 65)
    assert kv.usage().reserved == 64 + (128 - 64 - 4) // 2 + 4
    kv.check()


@pytest.mark.parametrize("compaction", ["pause", "incremental"])
def test_where_there_is_no_room_for_a_power_of_two_the_prompt_alone_will_do(compaction: str) -> None:
    kv = cache("contiguous", contiguous_reserve="grow", compaction=compaction, capacity=40, max_model_len=40)
    for slot, length in enumerate((8, 16, 16)):
        kv.admit(slot, [slot] * length, expected=40, limit=40)
    kv.release(0)
    kv.release(2)
    # 8 and 16 places are free, on both sides of the run that is left.
    assert kv.admit(3, [3] * 10, expected=40, limit=40) == 0
    assert kv.usage().reserved == 16 + 16
    kv.release(3)
    assert kv.admit(3, [3] * 20, expected=40, limit=40) == 0
    assert kv.usage().reserved == 16 + 24
    kv.check()


def test_a_run_does_not_grow_by_moving_others_for_a_few_places() -> None:
    kv = cache("contiguous", contiguous_reserve="grow", capacity=40, max_model_len=40)
    for slot, tokens in enumerate(([1] * 16, [2] * 16)):
        kv.admit(slot, tokens, expected=40, limit=40)
    assert kv.usage().reserved == 32
    assert not kv.extend(0, 17), "8 are free, behind the other"
    assert kv.extend(1, 17), "but it may take what is behind it"
    assert kv.layout.take_moves() == ()
    kv.check()


# ---- prefixes

UNIT = 4


def prefixes(reserve: str = "request", **settings: object):  # type: ignore[no-untyped-def]
    return cache("contiguous", contiguous_reserve=reserve, prefix_caching=True, hash_unit=UNIT, **settings)


def test_a_kept_run_is_copied_to_the_token() -> None:
    kv = prefixes()
    memory = Memory(kv)
    old = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    kv.admit(0, old, expected=12, limit=12)
    memory.write(0, 0, old, 10)
    kv.release(0)
    assert kv.usage() == Usage(64, reserved=0, used=0, wasted_inside=0, wasted_outside=0, shared=0, cached=10)
    new = [1, 2, 3, 4, 5, 6, 99]
    assert kv.admit(1, new, expected=12, limit=12) == 6, "one unit, and two tokens more"
    assert kv.view(PLAN).moves == (Move(0, 10, 6),), "behind the kept run, which stays"
    assert (start(kv, 1), kv.usage().cached) == (10, 10)
    assert kv.admit(2, [1, 2, 3, 98], expected=4, limit=4) == 0, "less than a unit is not found"
    kv.check()


def test_a_live_run_is_copied_as_soon_as_it_has_computed_a_unit() -> None:
    kv = prefixes()
    memory = Memory(kv)
    tokens = [1, 2, 3, 4, 5, 6]
    kv.admit(0, tokens, expected=10, limit=10)
    assert kv.admit(1, [*tokens, 7], expected=10, limit=10) == 0
    memory.write(0, 0, tokens, 4)
    assert kv.admit(2, [*tokens, 7], expected=10, limit=10) == 4
    memory.prepare()
    assert memory.read(2, 4) == contents(tokens[:4])
    kv.check()


@pytest.mark.parametrize("reserve", ["max-len", "request", "grow"])
def test_a_conversation_that_goes_on_takes_its_run_over(reserve: str) -> None:
    kv = prefixes(reserve, max_model_len=32)
    memory = Memory(kv)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    kv.admit(0, tokens, expected=10, limit=10)
    memory.write(0, 0, tokens, 9)
    kv.release(0)
    more = [*tokens, 10, 11, 12]
    assert kv.admit(1, more, expected=20, limit=20) == 9
    assert (start(kv, 1), kv.layout.take_moves(), kv.usage().cached) == (0, (), 0)
    # What it took over is still on offer, before it has computed anything.
    assert kv.admit(2, [*tokens, 30], expected=12, limit=12) == 9
    memory.prepare()
    memory.write(1, 9, more, 12)
    assert memory.read(1, 12) == contents(more)
    assert memory.read(2, 9) == contents(tokens)
    kv.check()


def test_a_run_is_not_taken_over_for_a_part_of_it() -> None:
    kv = prefixes()
    stem = [1, 2, 3, 4]
    run(kv, 0, [*stem, 5, 6, 7, 8, 9], 9)
    assert run(kv, 0, [*stem, 50, 51], 10, release=False) == 4
    assert kv.layout.take_moves() == (Move(0, 9, 4),)
    assert run(kv, 1, [*stem, 5, 6, 7, 8, 9, 10], 12) == 9


def test_a_run_is_not_taken_over_at_the_cost_of_another_while_there_is_room() -> None:
    kv = prefixes()
    old, other = [1] * 8, [2] * 8
    for slot, tokens in enumerate((old, other)):
        run(kv, slot, tokens, 8, release=False)
    kv.release(0)
    kv.release(1)
    assert run(kv, 2, [*old, 5], 12, release=False) == 8
    assert (start(kv, 2), kv.usage().cached) == (16, 16)


def test_a_source_that_is_in_the_way_slides_within_its_own_place() -> None:
    kv = prefixes(capacity=24, max_model_len=24)
    memory = Memory(kv)
    kv.admit(0, [9] * 4, expected=4, limit=4)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    kv.admit(1, tokens, expected=8, limit=8)
    memory.write(1, 0, tokens, 8)
    kv.release(1)
    kv.release(0)
    # Kept at 4..11, and all 24 places are wanted.
    new = [*tokens, 9]
    assert kv.admit(2, new, expected=24, limit=24) == 8
    assert kv.layout._space.moves == [Move(4, 0, 8)]  # type: ignore[attr-defined]
    memory.prepare()
    assert memory.read(2, 8) == contents(tokens)
    assert kv.usage().cached == 0
    kv.check()


def test_the_run_used_longest_ago_makes_room_first() -> None:
    kv = prefixes(capacity=24, max_model_len=24)
    old, new = [1] * 12, [2] * 8
    run(kv, 0, [*old], 12)
    run(kv, 1, [*new], 8)  # behind it: 12..19
    assert kv.usage().cached == 20
    assert run(kv, 2, [*old[:8], 7], 9, release=False) == 8, "used, so the other one is older now"
    # There are no 9 places free behind "new", so "new" goes, and "old" is copied.
    assert (start(kv, 2), kv.usage().cached) == (12, 12)
    kv.admit(3, [5], expected=8, limit=3)
    assert (start(kv, 3), kv.usage().cached) == (21, 12), "places that nothing is kept in come first"
    kv.admit(4, [5], expected=12, limit=12)
    assert kv.usage().cached == 0
    kv.check()


def test_who_is_refused_does_not_make_its_prefix_young() -> None:
    kv = prefixes(capacity=40, max_model_len=40)
    a, b = [1] * 8, [2] * 8
    for slot, tokens in enumerate((a, b)):
        run(kv, slot, tokens, 8, release=False)
    kv.admit(2, [3] * 24, expected=24, limit=24)
    kv.release(0)
    kv.release(1)
    assert kv.admit(3, [*a, 5], expected=17, limit=17) is None
    assert kv.admit(3, [6] * 8, expected=8, limit=8) == 0
    assert start(kv, 3) == 0, "the older of the two"


def test_a_kept_run_that_is_overwritten_from_behind_keeps_its_whole_units() -> None:
    kv = prefixes(capacity=24, max_model_len=24)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    run(kv, 0, tokens, 10)
    kv.layout._space.kept.evict(7, 9)  # type: ignore[attr-defined]
    kv.check()
    assert kv.usage().cached == 7
    assert kv.admit(1, tokens, expected=12, limit=12) == 7
    kv.layout._space.kept.evict(0, 24)  # type: ignore[attr-defined]
    kv.check()


def test_when_one_of_two_runs_with_a_prefix_is_gone_the_other_is_found() -> None:
    kv = prefixes(capacity=48)
    stem = [1, 2, 3, 4, 5, 6, 7, 8]
    run(kv, 0, [*stem, 20, 21, 22, 23], 12, release=False)
    run(kv, 1, [*stem, 30, 31, 32, 33], 12)
    kv.release(0)
    kv.admit(2, [9] * 24, expected=24, limit=24)
    assert kv.usage().cached == 24
    assert kv.admit(3, [7] * 12, expected=12, limit=12) == 0
    assert (start(kv, 3), kv.usage().cached) == (12, 12), "the one released first has gone"
    assert kv.admit(4, [*stem, 40], expected=9, limit=9) == 8
    kv.check()


def test_kept_runs_are_forgotten_when_the_index_is_reset() -> None:
    kv = prefixes()
    tokens = [1, 2, 3, 4, 5]
    run(kv, 0, tokens, 8)
    run(kv, 1, tokens, 8, release=False)
    kv.reset_prefix()
    kv.check()
    assert kv.usage().cached == 0
    assert run(kv, 2, tokens, 8) == 0
