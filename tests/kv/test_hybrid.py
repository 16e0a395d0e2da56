"""Hybrid: who gets a run, what becomes of it, and that it costs nothing that paging would not."""

from __future__ import annotations

from octavo.kv.usage import Usage
from tests.kv.memory import PLAN, Memory, cache, contents


def entries(kv, slot: int) -> tuple[int, list[int]]:  # type: ignore[no-untyped-def]
    """The run length of a slot and the beginnings of the runs that its room takes."""
    layout = kv.layout
    run = int(layout.run[slot])
    return run, layout.table[slot, : -(-len(layout.blocks[slot]) * layout.block_size // run)].tolist()


def test_a_short_sequence_gets_one_run_for_all_it_is_expected_to_need() -> None:
    kv = cache("hybrid", hybrid_threshold=12, block_size=4)
    kv.admit(0, [1] * 5, expected=11, limit=64)
    assert entries(kv, 0) == (12, [0])
    kv.admit(1, [1] * 5, expected=12, limit=64)  # not below the threshold
    assert entries(kv, 1) == (4, [12, 16])
    kv.computed(0, 5)
    assert kv.usage() == Usage(64, reserved=20, used=5, wasted_inside=15, wasted_outside=0, shared=0, cached=0)


def test_a_sequence_that_outgrows_its_run_keeps_its_blocks() -> None:
    kv = cache("hybrid", hybrid_threshold=12, block_size=4)
    memory = Memory(kv)
    tokens = list(range(8))
    kv.admit(0, tokens, expected=8, limit=64)
    kv.admit(1, [1] * 3, expected=4, limit=64)  # takes what lies behind
    memory.write(0, 0, tokens, 8)
    assert entries(kv, 0) == (8, [0])
    tokens.append(8)
    assert kv.extend(0, 9)
    assert entries(kv, 0) == (4, [0, 4, 12])
    assert kv.view(PLAN).moves == ()
    memory.write(0, 8, tokens, 9)
    assert memory.read(0, 9) == contents(tokens)
    kv.check()


def test_a_run_that_cannot_grow_stays_as_it_is() -> None:
    kv = cache("hybrid", hybrid_threshold=12, block_size=4, capacity=12)
    kv.admit(0, [1] * 8, expected=8, limit=12)
    kv.admit(1, [1], expected=1, limit=12)
    assert not kv.extend(0, 9)
    assert entries(kv, 0) == (8, [0])
    kv.check()


def test_without_consecutive_blocks_a_short_sequence_is_paged() -> None:
    kv = cache("hybrid", hybrid_threshold=12, block_size=4, capacity=16)
    for slot in range(4):
        kv.admit(slot, [1], expected=1, limit=16)
    for slot in (0, 2):
        kv.release(slot)  # blocks 0 and 2 are free
    assert kv.admit(0, [1] * 5, expected=8, limit=16) == 0
    assert entries(kv, 0) == (4, [0, 8])
    kv.check()


def test_a_run_too_long_for_the_free_blocks_does_not_keep_a_short_prompt_out() -> None:
    kv = cache("hybrid", hybrid_threshold=64, block_size=4, capacity=16, max_model_len=16)
    kv.admit(0, [1] * 8, expected=8, limit=16)
    assert kv.admit(1, [1] * 5, expected=12, limit=16) == 0
    assert entries(kv, 1) == (4, [8, 12])


def test_a_prefix_hit_references_blocks_inside_another_ones_run() -> None:
    kv = cache("hybrid", hybrid_threshold=20, block_size=4, prefix_caching=True)
    memory = Memory(kv)
    first = list(range(10))
    kv.admit(0, first, expected=12, limit=64)
    memory.write(0, 0, first, 10)
    second = [*range(8), 77]
    assert kv.admit(1, second, expected=12, limit=64) == 8
    assert entries(kv, 0) == (12, [0])
    assert entries(kv, 1) == (4, [0, 4, 12])
    assert memory.read(1, 8) == contents(second[:8])
    assert kv.usage().shared == 8
    kv.check()


def test_a_fork_shares_a_run_as_blocks_and_the_run_stays() -> None:
    kv = cache("hybrid", hybrid_threshold=20, block_size=4)
    memory = Memory(kv)
    tokens = list(range(6))
    kv.admit(0, tokens, expected=8, limit=64)
    memory.write(0, 0, tokens, 6)
    child = [*tokens, 70]
    assert kv.fork(0, 1, child)
    tokens.append(6)
    assert kv.extend(0, 7)
    assert entries(kv, 0) == (8, [0])
    assert entries(kv, 1) == (4, [0, 8])
    memory.prepare()
    memory.write(0, 6, tokens, 7)
    memory.write(1, 6, child, 7)
    assert memory.read(0, 7) == contents(tokens)
    assert memory.read(1, 7) == contents(child)
    kv.check()


def test_a_fork_left_alone_with_its_parents_run_goes_on_in_its_blocks() -> None:
    kv = cache("hybrid", hybrid_threshold=20, block_size=4)
    kv.admit(0, list(range(6)), expected=12, limit=64)
    kv.computed(0, 6)
    assert kv.fork(0, 1, list(range(6)))
    kv.release(0)
    assert kv.extend(1, 9)
    assert kv.view(PLAN).moves == ()
    assert kv.usage().reserved == 12
    kv.check()


def cached_blocks(kv, tokens: list[list[int]], keep: set[int]) -> None:  # type: ignore[no-untyped-def]
    """Fill the memory with sequences of one block each, in order of address, and release all but ``keep``, in order."""
    for slot, ids in enumerate(tokens):
        kv.admit(slot, ids, expected=64, limit=64)
        kv.computed(slot, len(ids))
    for slot in range(len(tokens)):
        if slot not in keep:
            kv.release(slot)


def test_a_run_is_made_by_evicting_cached_blocks_that_lie_together() -> None:
    kv = cache("hybrid", hybrid_threshold=20, block_size=4, capacity=32, prefix_caching=True)
    ids = [[i] * 4 for i in range(8)]
    cached_blocks(kv, ids, keep={1, 6})  # cached, oldest first: blocks 0 2 3 4 5 7
    assert kv.usage().cached == 24
    assert kv.admit(0, [50] * 9, expected=12, limit=64) == 0  # needs 3 together: 2 3 4 are the first to complete a run
    assert entries(kv, 0) == (12, [8])
    assert kv.usage().cached == 12
    kv.check()
    assert kv.admit(2, [0] * 4 + [9], expected=12, limit=64) == 4, "blocks that were not needed are still offered"
    kv.release(0)
    assert kv.admit(3, [3] * 4 + [9], expected=64, limit=64) == 0, "those that were are not"


def test_nothing_is_evicted_for_a_run_that_cannot_be_made() -> None:
    kv = cache("hybrid", hybrid_threshold=20, block_size=4, capacity=32, prefix_caching=True)
    cached_blocks(kv, [[i] * 4 for i in range(8)], keep={1, 3, 5})  # cached: blocks 0 2 4 6 7
    assert kv.admit(0, [50] * 9, expected=12, limit=64) == 0
    assert kv.layout.run[0] == 4
    assert kv.usage().cached == 8, "three blocks were needed, whatever they are called"
    assert kv.admit(2, [7] * 4 + [9], expected=64, limit=64) == 4, "and the oldest ones went"


def test_the_full_blocks_of_a_run_are_offered_and_survive_it() -> None:
    kv = cache("hybrid", hybrid_threshold=20, block_size=4, prefix_caching=True)
    kv.admit(0, list(range(9)), expected=12, limit=64)
    kv.computed(0, 9)
    kv.release(0)
    assert kv.usage().cached == 8
    assert kv.admit(1, [*range(8), 5, 6], expected=12, limit=64) == 8
