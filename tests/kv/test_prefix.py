"""Prefix caching: what is found, what it counts, in which order it goes."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.prefix import Chain, PrefixStats
from octavo.kv.usage import Usage
from octavo.kv.view import Move
from tests.kv.memory import PLAN, Memory, cache, contents


def run(kv, slot: int, tokens: list[int]) -> int:  # type: ignore[no-untyped-def]
    """Admit, compute and release; the tokens that were found."""
    reused = kv.admit(slot, tokens, expected=64, limit=64)
    kv.computed(slot, len(tokens))
    kv.release(slot)
    return reused


def test_digests_are_chained_hashes_of_little_endian_ids() -> None:
    chain = Chain([1, 2, 70000, 4, 5], 2)
    first = blake2b(struct.pack("<ii", 1, 2), digest_size=16).digest()
    assert chain.digest(1) == blake2b(first + struct.pack("<ii", 70000, 4), digest_size=16).digest()
    assert chain.digest(0) == first


def test_whole_blocks_are_found_and_the_rest_is_counted_as_rounding() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    assert run(kv, 0, list(range(10))) == 0
    assert run(kv, 0, [*range(9), 99, 98]) == 8
    assert run(kv, 0, [*range(7), 99, 98]) == 4
    assert run(kv, 0, [9, 9, 9]) == 0
    assert kv.prefix_stats == PrefixStats(queries=10 + 11 + 9 + 3, hits=8 + 4, rounding=2 + 3 + 1 + 3, reusable=8 + 4)
    assert kv.prefix_stats.misses == 8 + 0 + 4 + 0


@pytest.mark.parametrize(("layout", "block_size"), [("paged", 64), ("paged", 16), ("contiguous", 16)])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_what_could_have_been_reused_is_counted_beside_what_was(layout: str, block_size: int, prefix_caching: bool) -> None:
    kv = cache(layout, prefix_caching=prefix_caching, block_size=block_size, capacity=256, max_model_len=128)
    stem = list(range(48))
    found = run(kv, 0, stem)
    for tokens, reusable in [
        ([*stem[:40], *[99] * 30], 32),  # whole units of 16
        (list(stem), 47),  # one token is always computed
        ([7, *stem], 0),
        ([*stem[:40], *[99] * 30, 5], 64),  # what was brought before, not only what came first
    ]:
        before = kv.prefix_stats.reusable
        reused = run(kv, 0, tokens)
        found += reused
        assert kv.prefix_stats.reusable - before == max(reusable, reused)
    assert kv.prefix_stats.hits == found
    lost = {"paged": 0, "contiguous": 24}[layout]  # there is room for two runs here, and the third prompt took one's place
    assert found == (0 if not prefix_caching else 64 if block_size == 64 else kv.prefix_stats.reusable - lost)
    kv.admit(0, [3] * 8, expected=20, limit=64)
    kv.layout.filled[0] = 0
    grown = [3] * 8
    kv.release(0)
    kv.admit(0, grown, expected=20, limit=64)
    grown += [4] * 8
    kv.computed(0, 16)
    kv.release(0)
    before = kv.prefix_stats.reusable
    run(kv, 0, [*grown, 1])
    assert kv.prefix_stats.reusable - before == 16, "an output is seen too"


def test_the_same_block_after_another_prefix_is_not_the_same() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    run(kv, 0, [1, 1, 1, 1, 2, 2, 2, 2])
    assert run(kv, 0, [2, 2, 2, 2, 3]) == 0
    assert run(kv, 0, [3, 3, 3, 3, 2, 2, 2, 2, 9]) == 0


def test_one_token_is_always_computed_and_the_last_block_is_copied_for_it() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    memory = Memory(kv)
    tokens = list(range(8))
    kv.admit(0, tokens, expected=8, limit=64)
    memory.write(0, 0, tokens, 8)
    again = list(range(8))
    assert kv.admit(1, again, expected=8, limit=64) == 7
    assert kv.layout.take_moves() == (Move(4, 8, 3),)  # the second block, three tokens, into the third
    assert kv.usage() == Usage(64, reserved=12, used=11, wasted_inside=1, wasted_outside=0, shared=4, cached=0)
    kv.release(0)
    kv.release(1)
    assert kv.admit(2, again, expected=8, limit=64) == 7
    memory.prepare()
    memory.write(2, 7, again, 8)
    assert memory.read(2, 8) == contents(again)
    kv.check()


def test_with_blocks_of_one_token_a_full_hit_shares_all_but_the_last() -> None:
    kv = cache(prefix_caching=True, block_size=1)
    run(kv, 0, [1, 2, 3])
    assert kv.admit(0, [1, 2, 3], expected=3, limit=64) == 2
    assert kv.view(PLAN).moves == ()


def test_a_full_hit_in_a_full_memory_rewrites_its_last_block_in_place() -> None:
    kv = cache(prefix_caching=True, block_size=4, capacity=8, max_model_len=8)
    memory = Memory(kv)
    tokens = list(range(8))
    kv.admit(0, tokens, expected=8, limit=8)
    memory.write(0, 0, tokens, 8)
    kv.release(0)
    assert kv.admit(0, list(tokens), expected=8, limit=8) == 7
    assert memory.prepare().moves == ()
    memory.write(0, 7, tokens, 8)
    assert memory.read(0, 8) == contents(tokens)
    kv.check()


def test_output_tokens_are_found_too() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    tokens = [1, 2, 3]
    kv.admit(0, tokens, expected=64, limit=64)
    kv.computed(0, 3)
    for token in [4, 5, 6, 7, 8]:
        tokens.append(token)
        assert kv.extend(0, len(tokens))
        kv.computed(0, len(tokens))
    assert kv.admit(1, [1, 2, 3, 4, 5, 6, 7, 8, 9], expected=64, limit=64) == 8


def test_a_block_is_found_only_once_all_its_tokens_are_computed() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    kv.admit(0, list(range(12)), expected=64, limit=64)
    assert kv.admit(1, list(range(12)), expected=64, limit=64) == 0
    kv.computed(0, 7)
    assert kv.admit(2, list(range(12)), expected=64, limit=64) == 4


def test_ids_that_become_known_late_are_offered_late() -> None:
    """A step's tokens may be computed before their ids have come back."""
    kv = cache(prefix_caching=True, block_size=2)
    tokens = [1, 2, 3]
    kv.admit(0, tokens, expected=64, limit=64)
    assert kv.extend(0, 5)
    kv.computed(0, 4)
    assert len(kv.prefix) == 1
    tokens += [4, 5]
    kv.computed(0, 5)
    assert len(kv.prefix) == 2
    assert kv.admit(1, [1, 2, 3, 4, 5], expected=64, limit=64) == 4


def test_of_two_equal_blocks_the_first_is_kept() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    memory = Memory(kv)
    for slot in (0, 1):
        kv.admit(slot, [1, 2, 3, 4, 5], expected=64, limit=64)
    for slot in (0, 1):
        kv.computed(slot, 5)
    kv.admit(2, [1, 2, 3, 4, 6], expected=64, limit=64)
    assert memory.places(2, 0, 4) == memory.places(0, 0, 4)
    for slot in (0, 1, 2):
        kv.release(slot)
    assert kv.usage().cached == 4
    kv.check()


def test_the_least_recently_used_goes_first_and_of_a_sequence_its_end() -> None:
    kv = cache(prefix_caching=True, block_size=4, capacity=24)
    old, new = [1] * 8 + [0], [2] * 8 + [0]
    run(kv, 0, old)
    run(kv, 0, new)
    assert run(kv, 0, old) == 8  # now "new" is the older one
    # 4 cached blocks, 2 free ones. Four are needed: both free ones, then the end of "new", then its beginning.
    kv.admit(0, [7] * 12, expected=64, limit=64)
    assert kv.usage().cached == 12
    kv.admit(1, [8] * 1, expected=64, limit=64)
    assert kv.usage().cached == 8
    assert run(kv, 2, old[:8]) == 7
    kv.check()


def test_a_beginning_outlives_its_end() -> None:
    kv = cache(prefix_caching=True, block_size=4, capacity=16)
    tokens = list(range(12))
    run(kv, 0, tokens)  # 3 cached, 1 free
    kv.admit(0, [50] * 8, expected=64, limit=64)  # takes the free one and the third
    assert kv.admit(1, [*tokens, 1], expected=64, limit=64) is None  # 2 found, 2 more needed, none there
    assert kv.admit(1, [*tokens[:8]], expected=64, limit=64) == 7
    kv.check()


def test_a_refused_admission_counts_nothing_and_evicts_nothing() -> None:
    kv = cache(prefix_caching=True, block_size=4, capacity=16)
    run(kv, 0, list(range(8)))
    before = kv.prefix_stats.queries, kv.prefix_stats.hits, kv.usage()
    assert kv.admit(0, [*range(8), *range(9)], expected=64, limit=64) is None
    assert (kv.prefix_stats.queries, kv.prefix_stats.hits, kv.usage()) == before
    assert kv.admit(0, [*range(8), *range(8)], expected=64, limit=64) == 8


def test_what_was_refused_may_have_grown_when_it_comes_back() -> None:
    kv = cache(prefix_caching=True, block_size=4, capacity=24)
    tokens = [1, 2, 3, 4, 5, 6]
    run(kv, 0, [*tokens, 7, 8])
    kv.admit(0, [9] * 20, expected=64, limit=64)
    assert kv.admit(1, tokens, expected=64, limit=64) is None
    kv.release(0)
    run(kv, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    tokens += [7, 8, 9]
    assert kv.admit(1, tokens, expected=64, limit=64) == 8


def test_cached_blocks_count_as_free() -> None:
    kv = cache(prefix_caching=True, block_size=4, capacity=16)
    run(kv, 0, list(range(16)))
    assert kv.usage() == Usage(16, reserved=0, used=0, wasted_inside=0, wasted_outside=0, shared=0, cached=16)
    assert kv.admit(0, [9] * 16, expected=64, limit=64) == 0
    assert kv.usage().cached == 0
    assert len(kv.prefix) == 0
    kv.check()


def test_resetting_forgets_everything_but_leaves_running_sequences_alone() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    memory = Memory(kv)
    run(kv, 1, [9] * 8)
    tokens = list(range(9))
    kv.admit(0, tokens, expected=64, limit=64)
    memory.write(0, 0, tokens, 9)
    kv.reset_prefix()
    kv.check()
    assert kv.usage().cached == 0
    assert run(kv, 1, [*tokens, 1]) == 0
    assert memory.read(0, 9) == contents(tokens)
    kv.release(0)
    kv.check()


def test_a_fork_offers_its_own_continuation() -> None:
    kv = cache(prefix_caching=True, block_size=4)
    tokens = [1, 2, 3, 4, 5]
    kv.admit(0, tokens, expected=64, limit=64)
    kv.computed(0, 5)
    child = [1, 2, 3, 4, 5, 16, 17, 18]
    assert kv.fork(0, 1, child)
    kv.computed(1, 8)
    assert kv.admit(2, [*child, 1], expected=64, limit=64) == 8
    assert kv.admit(3, [1, 2, 3, 4, 5, 6, 7, 8, 1], expected=64, limit=64) == 4


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=12),
    block_size=st.sampled_from([1, 2, 4, 8]),
    layout=st.sampled_from(["paged", "hybrid"]),
)
def test_with_memory_to_spare_everything_that_was_computed_is_found(
    prompts: list[list[int]], block_size: int, layout: str
) -> None:
    kv = cache(layout, prefix_caching=True, block_size=block_size, capacity=20 * 2**8)
    known: set[tuple[int, ...]] = set()
    for tokens in prompts:
        whole = max((n for n in range(0, len(tokens) + 1, block_size) if n == 0 or tuple(tokens[:n]) in known), default=0)
        assert run(kv, 0, tokens) == min(whole, len(tokens) - 1)
        known |= {tuple(tokens[:n]) for n in range(block_size, len(tokens) + 1, block_size)}


@pytest.mark.parametrize("layout", ["paged", "hybrid"])
def test_without_an_index_nothing_is_found_or_kept(layout: str) -> None:
    kv = cache(layout, block_size=4)
    assert run(kv, 0, [1] * 8) == 0
    assert run(kv, 0, [1] * 8) == 0
    kv.reset_prefix()
    assert kv.usage().cached == 0
    assert kv.prefix_stats == PrefixStats()
