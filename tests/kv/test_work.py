"""KVWork and block-table bytes: what is counted, and that no second is counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.kv.cache import KVCache
from octavo.kv.factory import build_cache
from tests.fake_engine import SPEC

LAYOUTS = ("contiguous", "paged", "hybrid")


class Hands:
    """A clock that moves only where the test says so."""

    def __init__(self) -> None:
        self.moment = 100.0

    def now(self) -> float:
        return self.moment

    def slow(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **named: Any) -> Any:
            self.moment += seconds
            return function(*arguments, **named)

        return slow


def cache(layout: str = "paged", prefix: bool = False, capacity: int = 64) -> tuple[KVCache, Hands]:
    kv = build_cache(
        layout, SPEC, capacity=capacity, slots=4, max_model_len=32, block_size=4, hybrid_threshold=24, prefix_caching=prefix
    )
    hands = Hands()
    kv.work.now = hands.now
    return kv, hands


def admit(kv: KVCache, slot: int, tokens: int, expected: int | None = None) -> None:
    assert kv.admit(slot, list(range(100 * slot, 100 * slot + tokens)), expected=expected or tokens, limit=32) is not None


def test_evicting_is_no_part_of_what_it_makes_room_for() -> None:
    kv, hands = cache(prefix=True, capacity=16)
    admit(kv, 0, 12)
    kv.computed(0, 12)
    kv.release(0)  # three of four blocks stay cached
    kv.work.clear()
    kv.layout.on_evict = hands.slow(8.0, kv.layout.on_evict)
    kv.layout.pool.take = hands.slow(1.0, kv.layout.pool.take)  # type: ignore[attr-defined]
    admit(kv, 1, 8)  # a free block and a cached one
    assert (kv.work.allocate_s, kv.work.evict_s, kv.work.evicted_blocks) == (2.0, 8.0, 1)
    assert kv.extend(1, 12)
    assert (kv.work.extend_s, kv.work.evict_s, kv.work.evicted_blocks) == (1.0, 16.0, 2)
    assert kv.work.total_s() == hands.moment - 100.0


def test_hashing_and_releasing_are_told_apart() -> None:
    kv, hands = cache(prefix=True)
    assert kv.prefix is not None
    kv.prefix.match = hands.slow(2.0, kv.prefix.match)  # type: ignore[method-assign]
    kv.prefix.insert = hands.slow(4.0, kv.prefix.insert)  # type: ignore[method-assign]
    kv.layout.release = hands.slow(0.5, kv.layout.release)  # type: ignore[method-assign]
    admit(kv, 0, 9)
    kv.computed(0, 9)  # two blocks
    kv.release(0)
    assert (kv.work.match_s, kv.work.offer_s, kv.work.release_s) == (2.0, 8.0, 0.5)
    assert kv.work.total_s() == hands.moment - 100.0
    kv.work.clear()
    assert kv.work.total_s() == 0.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_extend_that_needs_nothing_costs_and_writes_nothing(layout: str) -> None:
    kv, _ = cache(layout)
    admit(kv, 0, 5, expected=8)
    kv.work.clear()
    assert kv.extend(0, 8)
    assert (kv.work.total_s(), kv.work.table_bytes) == (0.0, 0)


def test_table_bytes_of_a_paged_sequence_are_four_for_each_block() -> None:
    kv, _ = cache()
    admit(kv, 0, 9)
    assert (kv.table_bytes, kv.work.table_bytes) == (12, 12)
    assert kv.extend(0, 13)
    assert (kv.table_bytes, kv.work.table_bytes) == (16, 16)
    kv.release(0)
    assert (kv.table_bytes, kv.work.table_bytes) == (0, 16)


def test_a_run_has_one_entry_until_it_is_outgrown_or_given_back() -> None:
    kv, _ = cache("hybrid")
    admit(kv, 0, 9, expected=12)
    admit(kv, 1, 4, expected=20)
    assert (kv.table_bytes, kv.work.table_bytes) == (8, 8)
    assert kv.extend(0, 13)  # a fourth block; the three of the run are written with it
    assert (kv.table_bytes, kv.work.table_bytes) == (4 * 4 + 4, 8 + 4 * 4)
    kv.release(1)
    assert kv.table_bytes == 16
    kv.release(1)
    kv.release(0)
    assert kv.table_bytes == 0


def test_a_contiguous_sequence_has_one_entry() -> None:
    kv, _ = cache("contiguous")
    admit(kv, 0, 9)
    admit(kv, 1, 9)
    assert (kv.table_bytes, kv.work.table_bytes) == (8, 8)
    kv.release(0)
    assert kv.table_bytes == 4


def test_a_copied_block_is_one_entry_written() -> None:
    kv, _ = cache()
    admit(kv, 0, 6)
    kv.computed(0, 6)
    assert kv.fork(0, 1, list(range(6)))
    assert kv.table_bytes == 16
    kv.work.clear()
    assert kv.extend(1, 7)
    assert (kv.table_bytes, kv.work.table_bytes) == (16, 4)


def test_where_blocks_are_tiny_every_fourth_growth_stands_for_four() -> None:
    kv = build_cache("paged", SPEC, capacity=64, slots=4, max_model_len=32, block_size=1, prefix_caching=True)
    hands = Hands()
    kv.work.now = hands.now
    admit(kv, 0, 4)
    kv.computed(0, 4)
    assert kv.prefix is not None
    kv.layout.pool.take = hands.slow(1.0, kv.layout.pool.take)  # type: ignore[attr-defined]
    kv.prefix.insert = hands.slow(2.0, kv.prefix.insert)  # type: ignore[method-assign]
    kv.work.clear()
    tokens = kv._sequences[0].tokens  # type: ignore[union-attr]
    for length in range(5, 13):
        tokens.append(length)
        assert kv.extend(0, length)
        kv.computed(0, length)
    assert (kv.work.extend_s, kv.work.offer_s) == (8.0, 16.0)
    assert kv.work.table_bytes == 8 * 4
