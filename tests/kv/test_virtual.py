"""Virtual: what is mapped, what is shared, what memory it takes, and what it refuses."""

from __future__ import annotations

import errno
import itertools
import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError, IntegrityError
from octavo.kv import mapping
from octavo.kv.arena import KVSpec, UnbackedArena
from octavo.kv.cache import KVCache
from octavo.kv.factory import build_cache, can_share, taken
from octavo.kv.prefix import Chain
from octavo.kv.rows import runs, span, top
from octavo.kv.usage import Usage
from octavo.kv.view import Move
from octavo.kv.virtual import Virtual
from tests.kv.memory import PLAN, Memory, cache, contents

SPEC = KVSpec(layers=1, kv_heads=1, head_dim=384, dtype="float32")  # 1536 bytes a token: 8 tokens in 3 pages of each tensor
ROW = 2 * 4096  # bytes: a page for keys and one for values
LIMITS = {"expected": 40, "limit": 40}


def virtual(**settings: object) -> KVCache:
    """4 slots of up to 40 tokens over 96 tokens' worth of pages: 36 rows."""
    return cache("virtual", **{"spec": SPEC, "capacity": 96, "slots": 4, "max_model_len": 40, **settings})


def layout(kv: KVCache) -> Virtual:
    assert isinstance(kv.layout, Virtual)
    return kv.layout


def resident_rows(kv: KVCache) -> float:
    """What is in memory once all pages are brought in."""
    pages = layout(kv).pages
    pages._populator.wait()  # type: ignore[attr-defined]
    return (pages.resident_bytes() or 0) / ROW


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that arenas make."""
    made: list[str] = []
    for name in ("map", "punch"):
        original = getattr(mapping.MappedArena, name)

        def spy(self, *arguments, name=name, original=original):  # type: ignore[no-untyped-def]
            made.append(name)
            return original(self, *arguments)

        monkeypatch.setattr(mapping.MappedArena, name, spy)
    return made


def run(kv: KVCache, memory: Memory, slot: int, tokens: list[int], limit: int = 40) -> int:
    """Admit and compute a sequence; how many tokens were there already."""
    reused = kv.admit(slot, tokens, expected=limit, limit=limit)
    assert reused is not None
    memory.prepare()
    memory.write(slot, reused, tokens, len(tokens))
    assert memory.read(slot, len(tokens)) == contents(tokens)
    kv.check()
    return reused


# ---- memory


def test_a_sequence_is_one_run_of_addresses_and_takes_pages_as_it_grows(calls: list[str]) -> None:
    kv = virtual()
    calls.clear()
    tokens = [1] * 10
    assert kv.admit(1, tokens, **LIMITS) == 0
    # 10 tokens are 15360 bytes, 4 pages of each tensor; those hold 10 whole tokens.
    assert kv.usage() == Usage(96, reserved=10, used=0, wasted_inside=10, wasted_outside=0, shared=0, cached=0)
    view = kv.view(PLAN)
    assert calls == []
    view.prepare()
    assert calls == ["map"]
    assert (view.table[1, 0], view.run[1], view.arena.tokens) == (40, 40, 4 * 40 + 4 * 8)
    assert kv.work.fault_pages == 4 * 2
    assert resident_rows(kv) == 5, "the page of the next token comes ahead"
    kv.computed(1, 10)
    assert kv.extend(1, 11)
    assert kv.usage() == Usage(96, reserved=13, used=10, wasted_inside=3, wasted_outside=0, shared=0, cached=0)
    view = kv.view(PLAN)
    assert view.moves == ()
    view.prepare()
    assert kv.work.fault_pages == 4 * 2, "it was there"
    assert resident_rows(kv) == 6
    assert calls == ["map"], "growth maps nothing"
    kv.release(1)
    assert kv.usage().reserved == 0
    kv.check()


def test_a_slots_pages_stay_for_the_next_sequence(calls: list[str]) -> None:
    kv = virtual()
    memory = Memory(kv)
    run(kv, memory, 0, [1] * 30, limit=30)
    assert resident_rows(kv) == 12
    kv.release(0)
    calls.clear()
    kv.work.clear()
    run(kv, memory, 0, [2] * 20, limit=20)
    assert (calls, kv.work.fault_pages, resident_rows(kv)) == ([], 0, 12)


def test_memory_never_grows_beyond_its_limit() -> None:
    kv = virtual(capacity=64)  # 24 rows
    memory = Memory(kv)
    for slot in range(3):
        run(kv, memory, slot, [slot] * 21, limit=21)  # 8 rows each
    assert kv.admit(3, [3], expected=1, limit=1) is None
    assert resident_rows(kv) == 24
    for slot in (1, 0):
        kv.release(slot)
    assert resident_rows(kv) == 24, "kept warm"
    run(kv, memory, 3, [3] * 40)  # 15 rows: of the slot that was released first
    assert resident_rows(kv) <= 24
    assert kv.admit(0, [3] * 3, expected=3, limit=3) is None
    assert memory.read(2, 21) == contents([2] * 21)
    kv.check()


def test_what_a_step_may_still_read_stays_until_the_next_one_is_prepared() -> None:
    kv = virtual(capacity=48, prefix_caching=True)
    memory = Memory(kv)
    tokens = list(range(40))
    run(kv, memory, 0, tokens)
    kv.release(0)
    assert kv.admit(0, [7] * 40, **LIMITS) == 0
    assert kv.admit(1, [7], expected=1, limit=1) == 0
    places = memory.places(0, 0, 40)
    assert memory.cells[0, places].tolist() == contents(tokens)
    memory.prepare()
    kv.check()


def test_what_views_change_is_done_in_their_order_and_no_earlier(calls: list[str]) -> None:
    kv = virtual(prefix_caching=True)
    memory = Memory(kv)
    calls.clear()
    assert kv.admit(0, [1, 2], **LIMITS) == 0
    first = kv.view(PLAN)
    assert kv.admit(1, [3], **LIMITS) == 0
    kv.view(PLAN)  # of a step that is given up
    assert kv.admit(2, [4], **LIMITS) == 0
    third = kv.view(PLAN)
    first.prepare()
    assert calls == ["map"]
    third.prepare()
    assert calls == ["map"] * 3
    third.prepare()
    kv.view(PLAN).prepare()
    assert calls == ["map"] * 3
    memory.write(1, 0, [3], 1)
    assert memory.read(1, 1) == contents([3])
    kv.check()


def test_pages_of_a_region_whose_prefix_is_evicted_are_used_again(calls: list[str]) -> None:
    kv = virtual(capacity=40, max_model_len=40, prefix_caching=True)  # 15 rows
    memory = Memory(kv)
    run(kv, memory, 0, list(range(40)))
    kv.release(0)
    assert kv.usage().cached == 40
    calls.clear()
    run(kv, memory, 1, [7] * 40)
    assert "punch" not in calls
    assert resident_rows(kv) == 15


# ---- sharing


def test_a_prefix_is_shown_twice_not_copied(calls: list[str]) -> None:
    kv = virtual(prefix_caching=True)
    memory = Memory(kv)
    stem = list(range(100, 116))
    assert run(kv, memory, 0, [*stem, 1]) == 0
    before = resident_rows(kv)
    calls.clear()
    assert run(kv, memory, 1, [*stem, 2, 3]) == 16
    assert calls == ["map", "map"], "the shared units and its own"
    assert kv.usage() == Usage(96, reserved=21, used=19, wasted_inside=2, wasted_outside=0, shared=16, cached=0)
    assert resident_rows(kv) == before + 2
    kv.release(1)
    calls.clear()
    assert run(kv, memory, 1, [*stem, 4]) == 16
    assert calls == [], "the slot shows these units already"
    kv.release(0)  # who computed the prefix goes first
    assert kv.usage() == Usage(96, reserved=18, used=17, wasted_inside=1, wasted_outside=0, shared=0, cached=0)
    assert memory.read(1, 17) == contents([*stem, 4])
    kv.release(1)
    assert kv.usage().cached == 16
    kv.check()


def test_a_continued_conversation_goes_on_where_it_lies(calls: list[str]) -> None:
    kv = virtual(prefix_caching=True)
    memory = Memory(kv)
    tokens = list(range(17))
    run(kv, memory, 0, tokens)
    kv.release(0)
    calls.clear()
    assert run(kv, memory, 0, [*tokens, 50, 51]) == 16
    assert calls == []
    assert len(layout(kv)._slots[0].wanted) == 1


def test_what_is_known_to_the_last_token_is_copied_up_to_it() -> None:
    kv = virtual(prefix_caching=True)
    memory = Memory(kv)
    tokens = list(range(16))
    run(kv, memory, 0, tokens)
    assert kv.admit(1, tokens, **LIMITS) == 15
    assert kv.admit(2, tokens, **LIMITS) == 15
    view = kv.view(PLAN)
    view.prepare()
    assert view.moves == (Move(160, 40 + 8, 7), Move(160, 80 + 8, 7)), "both from one window"
    for move in view.moves:
        memory.cells[:, move.target : move.target + 7] = memory.cells[:, move.source : move.source + 7]
    assert memory.read(1, 15) == memory.read(2, 15) == contents(tokens[:15])
    memory.write(1, 15, tokens, 16)
    assert memory.read(0, 16) == contents(tokens)
    kv.check()


def test_a_copy_that_nobody_waits_for_any_more_is_not_made() -> None:
    kv = virtual(prefix_caching=True)
    memory = Memory(kv)
    tokens = list(range(16))
    run(kv, memory, 0, tokens)
    assert kv.admit(1, tokens, **LIMITS) == 15
    kv.release(1)
    kv.release(0)
    assert kv.usage().reserved == 0
    assert kv.view(PLAN).moves == ()
    kv.check()


def test_where_the_source_of_a_copy_has_no_room_beside_it_whole_units_are_taken() -> None:
    kv = virtual(capacity=16, max_model_len=16, prefix_caching=True)  # 6 rows: two units
    memory = Memory(kv)
    tokens = list(range(16))
    run(kv, memory, 0, tokens, limit=16)
    kv.release(0)
    assert kv.admit(0, tokens, expected=16, limit=16) == 8
    memory.prepare()
    kv.check()


def test_the_tail_of_the_prefix_used_longest_ago_goes_first() -> None:
    kv = virtual(capacity=64, prefix_caching=True)  # 8 units
    memory = Memory(kv)
    old, new = list(range(24)), list(range(100, 124))
    for slot, tokens in ((0, old), (1, new)):
        run(kv, memory, slot, [*tokens, 1], limit=25)
        kv.release(slot)
    run(kv, memory, 0, [*old, 2], limit=25)  # used again
    kv.release(0)
    assert kv.usage().cached == 48
    run(kv, memory, 2, [7] * 32, limit=32)  # four units: two are free
    kv.check()
    kv.release(2)
    assert kv.work.evicted_blocks == 2
    assert kv.prefix is not None
    assert [kv.prefix.match(Chain([*tokens, 3], 8))[1] for tokens in (old, new)] == [24, 8]


def test_a_fork_shares_whole_units_and_copies_the_rest() -> None:
    kv = virtual()
    memory = Memory(kv)
    tokens = list(range(20))
    run(kv, memory, 0, tokens)
    assert kv.fork(0, 1, [*tokens, 9])
    assert kv.usage().shared == 16
    kv.release(0)  # before the copy is made
    kv.admit(0, [5] * 40, **LIMITS)
    memory.prepare()
    assert memory.read(1, 20) == contents(tokens)
    memory.write(1, 20, [*tokens, 9], 21)
    assert memory.read(1, 21) == contents([*tokens, 9])
    kv.check()


def test_a_fork_of_a_fork_does_not_depend_on_the_one_between() -> None:
    kv = virtual()
    memory = Memory(kv)
    run(kv, memory, 0, [1, 2, 3])
    assert kv.fork(0, 1, [1, 2, 3])
    assert kv.fork(1, 2, [1, 2])
    kv.release(1)
    memory.prepare()
    assert memory.read(2, 2) == contents([1, 2])
    kv.check()


# ---- memory areas


def test_too_many_sequences_for_the_memory_areas_are_refused_with_the_number_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_free_areas", lambda: 40)  # two tensors: 20 pieces, one of them what lies between the others
    with pytest.raises(
        ConfigError, match=r"max_num_seqs is 10: .* 2 tensors, 42 memory areas, .* 40 more .*: at most 9 is accepted"
    ):
        virtual(slots=10)
    assert layout(virtual(slots=9)).pages.areas == 2


def test_a_hit_takes_no_more_segments_than_there_are_areas_for() -> None:
    kv = virtual(prefix_caching=True)
    memory = Memory(kv)
    stem = list(range(8))
    run(kv, memory, 0, [*stem, *range(20, 28), 1])
    # The second's region ends with units of its own: a third is shown units of both.
    second = [*stem, *range(30, 38), 2]
    run(kv, memory, 1, second)
    pages, tensors = layout(kv).pages, layout(kv).shape.tensors
    pages.areas = tensors  # the second has used it
    assert run(kv, memory, 2, [*second[:16], 3]) == 0
    kv.release(2)
    pages.areas = 2 * tensors
    assert run(kv, memory, 2, [*second[:16], 3]) == 8
    kv.release(2)
    kv.release(1)  # the segment of an idle slot can be taken back
    pages.areas = tensors
    assert run(kv, memory, 3, [*stem, 4]) == 8
    assert not kv.fork(3, 2, [*stem])
    kv.check()


# ---- what it refuses


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"capacity": 2},
            "holds 2 tokens of 3072 bytes, less than one token in pages of 4096 bytes: raise kv_memory to at least 9216",
        ),
        ({"slots": 60_000_000}, "max_num_seqs is 60000000: kv_layout=virtual has 40 token indices for each sequence"),
        (
            {"spec": KVSpec(1, 3, 64, "int8"), "max_model_len": 1000, "prefix_caching": True, "capacity": 9999},
            r"enable_prefix_caching is on with kv_layout=virtual: whole pages of 4096 bytes hold no fewer than 1024 tokens of "
            r"204 bytes \(int8\), .* max_model_len is 1000. Turn it off, use kv_cache_dtype=bfloat16 .no fewer than 32",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        virtual(**settings)


def test_a_system_that_cannot_do_it_is_refused_with_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memfd(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", no_memfd)
        with pytest.raises(ConfigError, match=r"no memfd_create \(Operation not permitted\): use kv_layout=paged"):
            virtual()
    libc = mapping._libc()
    broken = SimpleNamespace(mmap=libc.mmap, madvise=libc.madvise, fallocate=lambda *_: -1)
    monkeypatch.setattr(mapping, "_libc", lambda: broken)
    with pytest.raises(ConfigError, match="no fallocate"):
        virtual()


def test_what_takes_whole_pages() -> None:
    smollm2 = KVSpec(30, 3, 64, "bfloat16")
    assert taken("virtual", smollm2, 11, 16) == 22, "two pages, of 10.67 tokens each"
    assert taken("paged", smollm2, 17, 16) == 32
    assert taken("contiguous", smollm2, 17, 16) == 17
    assert can_share("virtual", smollm2, 32)
    assert not can_share("virtual", smollm2, 31)


def test_a_simulation_has_no_pages_and_describes_the_same() -> None:
    how = {"capacity": 10**6, "slots": 4, "max_model_len": 1000, "block_size": 16, "prefix_caching": True}
    kv = build_cache("virtual", KVSpec(80, 8, 128, "bfloat16"), make_arena=UnbackedArena, **how)  # type: ignore[arg-type]
    assert kv.admit(0, [1] * 101, expected=200, limit=200) == 0
    kv.view(PLAN)
    kv.computed(0, 101)
    assert kv.usage() == Usage(10**6, reserved=102, used=101, wasted_inside=1, wasted_outside=0, shared=0, cached=0)
    assert kv.describe()["pages"] == "4 KiB in each of 160 tensors: 655360 bytes, 2 tokens, are taken at once"
    assert kv.describe()["enable_prefix_caching"] == "on, every 2 tokens"
    with pytest.raises(RuntimeError, match="simulation"):
        kv.arena.array()


# ---- the integrity check


def test_the_integrity_check_finds_what_is_wrong() -> None:
    kv = virtual(capacity=48, prefix_caching=True)
    memory = Memory(kv)
    run(kv, memory, 0, list(range(40)))
    regions = layout(kv).regions
    regions.held += 1
    with pytest.raises(IntegrityError, match="the totals of rows"):
        kv.check()
    regions.held -= 1
    regions.regions[0].refs[1] = 1
    with pytest.raises(IntegrityError, match="unit 1 has 1 references, but 0 sequences say so"):
        kv.check()
    del regions.regions[0].refs[1]
    kv.check()
    kv.admit(1, [1], expected=1, limit=1)
    kv.view(PLAN).prepare()
    memory.cells[:, memory.places(1, 0, 40)] = 0  # writes that nobody was promised
    with pytest.raises(IntegrityError, match="bytes of keys and values are in memory, more than the"):
        kv.check()


# ---- sets of rows


@given(st.sets(st.integers(0, 300)), st.integers(1, 50))
def test_runs_and_tops_of_row_sets(rows: set[int], count: int) -> None:
    mask = sum(1 << row for row in rows)
    found = list(runs(mask))
    assert [row for start, end in found for row in range(start, end)] == sorted(rows)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(found)), "no two touch"
    assert sum(span(start, end) for start, end in found) == mask
    if rows:
        highest = [row for row in sorted(rows) if row > max(rows) - count]
        assert top(mask, count) == sum(1 << row for row in highest)
