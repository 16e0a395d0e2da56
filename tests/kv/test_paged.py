"""Paged: usage, sharing and copy on write, by hand."""

from __future__ import annotations

import pytest

from octavo.errors import IntegrityError
from octavo.kv.usage import Usage
from octavo.kv.view import Move
from tests.kv.memory import PLAN, Memory, cache, contents


def moves(kv) -> tuple[Move, ...]:  # type: ignore[no-untyped-def]
    return kv.view(PLAN).moves


def test_usage_counts_the_rest_of_last_blocks_and_of_the_capacity_as_waste() -> None:
    kv = cache(capacity=22, block_size=4)  # 5 blocks and 2 tokens that no block can use
    assert kv.admit(0, [1] * 6, expected=6, limit=20) == 0  # 2 blocks
    assert kv.admit(1, [2] * 4, expected=6, limit=20) == 0  # 1 block
    assert kv.usage() == Usage(22, reserved=12, used=0, wasted_inside=12, wasted_outside=2, shared=0, cached=0)
    kv.computed(0, 6)
    kv.computed(1, 3)
    assert kv.usage() == Usage(22, reserved=12, used=9, wasted_inside=3, wasted_outside=2, shared=0, cached=0)
    assert kv.usage().fraction == 12 / 22
    kv.release(0)
    assert kv.usage() == Usage(22, reserved=4, used=3, wasted_inside=1, wasted_outside=2, shared=0, cached=0)
    kv.release(1)
    assert kv.usage() == Usage(22, reserved=0, used=0, wasted_inside=0, wasted_outside=2, shared=0, cached=0)


def test_what_does_not_fit_is_refused_and_what_fits_exactly_is_not() -> None:
    kv = cache(capacity=16, block_size=4, max_model_len=16)
    assert kv.longest == 16
    assert kv.admit(0, [1] * 9, expected=9, limit=16) == 0  # 3 of 4 blocks
    assert kv.admit(1, [1] * 5, expected=5, limit=16) is None
    assert kv.admit(1, [1] * 4, expected=4, limit=16) == 0
    assert kv.extend(0, 12)
    assert not kv.extend(0, 13)
    kv.release(1)
    assert kv.extend(0, 13)
    assert kv.usage().reserved == 16


def test_a_whole_reservation_is_room_for_the_limit() -> None:
    kv = cache(capacity=16, block_size=4, max_model_len=16)
    assert kv.admit(0, [1], expected=2, limit=13, whole=True) == 0
    assert kv.usage().reserved == 16
    assert kv.extend(0, 13)


def test_a_sequence_cannot_grow_beyond_max_model_len() -> None:
    kv = cache(capacity=64, max_model_len=12, block_size=4)
    assert kv.longest == 12
    assert kv.admit(0, [1] * 13, expected=13, limit=13) is None
    assert kv.admit(0, [1] * 12, expected=12, limit=12) == 0
    assert not kv.extend(0, 13)


def test_one_sequence_per_slot() -> None:
    kv = cache()
    kv.admit(0, [1], expected=2, limit=2)
    with pytest.raises(ValueError, match="slot 0 already holds a sequence"):
        kv.admit(0, [1], expected=2, limit=2)


def test_releasing_an_empty_slot_does_nothing() -> None:
    kv = cache(prefix_caching=True)
    kv.release(3)
    kv.check()


def test_a_fork_shares_every_block_and_copies_the_last_one_when_it_writes() -> None:
    kv = cache(capacity=64, block_size=4)
    memory = Memory(kv)
    tokens = [1, 2, 3, 4, 5, 6]
    kv.admit(0, tokens, expected=9, limit=64)
    memory.write(0, 0, tokens, 6)
    child = list(tokens)
    assert kv.fork(0, 1, child)
    assert kv.usage() == Usage(64, reserved=8, used=6, wasted_inside=2, wasted_outside=0, shared=8, cached=0)
    assert moves(kv) == ()
    assert memory.places(1, 0, 6) == memory.places(0, 0, 6)

    tokens.append(7)
    assert kv.extend(0, 7)  # the parent goes on where it is
    assert moves(kv) == ()
    kv.computed(0, 7)
    assert kv.usage() == Usage(64, reserved=8, used=7, wasted_inside=1, wasted_outside=0, shared=8, cached=0)

    child.append(8)
    assert kv.extend(1, 7)
    assert moves(kv) == (Move(4, 8, 2),)
    assert memory.places(0, 0, 8) == list(range(8))
    assert memory.places(1, 0, 8) == [*range(4), *range(8, 12)]
    assert kv.usage() == Usage(64, reserved=12, used=9, wasted_inside=3, wasted_outside=0, shared=4, cached=0)
    kv.check()


def test_a_parent_grows_out_of_the_shared_block_without_a_copy() -> None:
    kv = cache(capacity=64, block_size=4)
    tokens = [1, 2, 3, 4, 5, 6]
    kv.admit(0, tokens, expected=9, limit=64)
    kv.computed(0, 6)
    kv.fork(0, 1, list(tokens))
    assert kv.extend(0, 9)
    assert moves(kv) == ()
    assert kv.usage().reserved == 12
    kv.check()


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_the_last_one_left_of_parent_and_forks_writes_without_a_copy(prefix_caching: bool) -> None:
    kv = cache(capacity=64, block_size=4, prefix_caching=prefix_caching)
    tokens = [1, 2, 3, 4, 5, 6]
    kv.admit(0, tokens, expected=9, limit=64)
    kv.computed(0, 6)
    for slot in (1, 2):
        kv.fork(0, slot, list(tokens))
    kv.release(0)
    assert kv.extend(1, 7)
    assert moves(kv) == (Move(4, 8, 2),)
    assert kv.extend(2, 7)
    assert moves(kv) == ()
    assert kv.usage().reserved == 12
    kv.check()


def test_forks_do_not_touch_a_whole_reservation() -> None:
    kv = cache(capacity=12, block_size=4, max_model_len=12)
    kv.admit(0, [1, 2], expected=12, limit=12, whole=True)
    kv.computed(0, 2)
    assert kv.fork(0, 1, [1, 2])
    assert not kv.extend(1, 3)
    assert kv.extend(0, 12)
    kv.check()


def test_forks_keep_their_own_continuations() -> None:
    kv = cache(capacity=64, block_size=4)
    memory = Memory(kv)
    prompt = [1, 2, 3, 4, 5, 6]
    kv.admit(0, prompt, expected=9, limit=64)
    memory.write(0, 0, prompt, 6)
    branches = {0: [*prompt, 10], 1: [*prompt, 11], 2: [*prompt, 12]}
    for slot in (1, 2):
        assert kv.fork(0, slot, branches[slot])
    assert kv.extend(0, 7)
    memory.prepare()
    for slot, tokens in branches.items():
        memory.write(slot, 6, tokens, 7)
    for slot, tokens in branches.items():
        assert memory.read(slot, 7) == contents(tokens)
    kv.check()


def test_a_fork_at_a_block_boundary_never_copies() -> None:
    kv = cache(capacity=64, block_size=4)
    tokens = [1] * 8
    kv.admit(0, tokens, expected=12, limit=64)
    kv.computed(0, 8)
    assert kv.fork(0, 1, [*tokens, 2])
    assert kv.extend(0, 9)
    assert moves(kv) == ()
    assert kv.usage().reserved == 16


def test_a_fork_that_does_not_fit_changes_nothing() -> None:
    kv = cache(capacity=8, block_size=4, max_model_len=8)
    kv.admit(0, [1] * 6, expected=8, limit=8)
    kv.computed(0, 6)
    before = kv.usage()
    assert not kv.fork(0, 1, [1] * 7)
    assert kv.usage() == before
    kv.check()
    assert kv.extend(0, 8)  # the parent is not held up by it
    assert moves(kv) == ()


def test_forking_needs_a_parent_an_empty_slot_and_the_same_tokens() -> None:
    kv = cache()
    with pytest.raises(ValueError, match="slot 0 holds no sequence"):
        kv.fork(0, 1, [1])
    kv.admit(0, [1, 2, 3], expected=9, limit=64)
    kv.computed(0, 2)
    assert kv.fork(0, 1, [1, 2, 4])
    with pytest.raises(ValueError, match="slot 1 already holds one"):
        kv.fork(0, 1, [1, 2])
    with pytest.raises(ValueError, match="other tokens than the parent in slot 0"):
        kv.fork(0, 2, [1, 4, 3])
    kv.check()


def test_the_last_holder_of_a_shared_block_writes_into_it_unless_others_can_find_it() -> None:
    """The parent filled the block that the child shares in part, and left: the index must not lead to what the child writes."""
    kv = cache(capacity=64, block_size=4, prefix_caching=True)
    memory = Memory(kv)
    tokens = [1, 2, 3, 4, 5, 6]
    kv.admit(0, tokens, expected=9, limit=64)
    memory.write(0, 0, tokens, 6)
    tokens += [7, 8]
    assert kv.extend(0, 8)  # granted, then forked, then written
    child = [1, 2, 3, 4, 5, 6]
    assert kv.fork(0, 1, child)
    memory.prepare()
    memory.write(0, 6, tokens, 8)
    kv.release(0)
    child += [9, 9]
    assert kv.extend(1, 8)
    memory.prepare()
    memory.write(1, 6, child, 8)
    assert memory.read(1, 8) == contents(child)
    reused = kv.admit(2, [*tokens, 5], expected=12, limit=64)
    assert reused == 4  # the second block is the child's now
    memory.prepare()
    assert memory.read(2, 4) == contents(tokens[:4])
    kv.check()


def test_the_table_shows_one_entry_for_each_block_and_is_not_rebuilt() -> None:
    kv = cache(capacity=64, block_size=4)
    kv.admit(0, [1] * 8, expected=8, limit=64)
    view = kv.view(PLAN)
    assert view.table.shape == (8, 16)
    assert view.run[0] == 4
    first = view.table[0, :2].tolist()
    assert kv.extend(0, 9)
    assert kv.view(PLAN).table is view.table
    assert view.table[0, :2].tolist() == first
    assert view.table[0, 2] % 4 == 0
    assert view.table[0, 2] not in first


def corrupt_count(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.pool.refs[kv.layout.blocks[0][0]] += 1


def corrupt_total(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.pool.references += 1


def corrupt_table(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.table[0, 1] += 4


def corrupt_room(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.room[0] = 100


def corrupt_filled(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.filled[5] = 1


def corrupt_free(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.pool.take()
    kv.layout.pool.held -= 1
    kv.layout.pool.references -= 1
    kv.layout.pool.refs = [0 if i not in kv.layout.blocks[0] else 1 for i in range(kv.layout.pool.blocks)]


def corrupt_index(kv) -> None:  # type: ignore[no-untyped-def]
    kv.prefix.forget(kv.layout.blocks[0][0])


def corrupt_offer(kv) -> None:  # type: ignore[no-untyped-def]
    kv.layout.pool.offered[kv.layout.blocks[0][0]] = 0


@pytest.mark.parametrize("layout", ["paged", "hybrid"])
@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (corrupt_count, r"block \d+ has reference count 2, but 1 sequences hold it"),
        (corrupt_total, "the pool counts 2 held blocks and 3 references"),
        (corrupt_table, "the table's row of slot 0"),
        (corrupt_room, "slot 0 has 2 blocks of 4 tokens"),
        (corrupt_filled, "slot 5 has 0 blocks of 4 tokens, but 1 tokens are in use"),
        (corrupt_free, r"block \d+ with reference count 0 is listed 0 times"),
        (corrupt_index, "the layout keeps"),
        (corrupt_offer, "the prefix index leads to"),
    ],
)
def test_the_integrity_check_finds_what_was_broken(layout: str, corrupt, message: str) -> None:  # type: ignore[no-untyped-def]
    kv = cache(layout, block_size=4, prefix_caching=True, hybrid_threshold=1)
    kv.admit(0, [1] * 6, expected=6, limit=64)
    kv.computed(0, 6)
    kv.check()
    corrupt(kv)
    with pytest.raises(IntegrityError, match=message):
        kv.check()
