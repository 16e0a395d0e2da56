"""How a step's rows are ordered and grouped."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.attention.batch import MAX_KEYS, MAX_PAIRS, Batch, group_rows
from octavo.kv.arena import KVSpec
from octavo.scheduler.plan import Logits, Row
from tests.placement import make_view

VIEW = make_view(KVSpec(1, 1, 2, "float32"), 64, 5000, 16)
ROWS = st.lists(st.tuples(st.integers(0, 3000), st.one_of(st.just(1), st.integers(1, 1900))), min_size=1, max_size=64)


def batch_of(rows):
    return Batch.of([Row(slot, start, length, [0] * length, Logits.NONE) for slot, (start, length) in enumerate(rows)], VIEW)


def test_tokens_of_each_row_have_their_positions_and_places():
    batch = batch_of([(5, 3), (9, 1), (0, 2)])
    assert batch.order.tolist() == [1, 0, 2]  # one token first, then by falling context
    assert batch.positions.tolist() == [9, 5, 6, 7, 0, 1]
    slots = [1, 0, 0, 0, 2, 2]
    assert batch.targets.tolist() == [int(VIEW.table[s, p // 16]) + p % 16 for s, p in zip(slots, batch.positions, strict=True)]


@given(rows=ROWS, window=st.one_of(st.none(), st.integers(1, 500)), padding=st.sampled_from([2.0, float("inf")]))
def test_groups_cover_every_row_once_and_bound_padding_and_memory(rows, window, padding):
    batch = batch_of(rows)
    groups = list(group_rows(batch, window, padding))
    assert [g.first for g in groups] == [0, *(g.last for g in groups[:-1])]
    assert groups[-1].last == len(rows)
    for group in groups:
        these = slice(group.first, group.last)
        keys, lengths = batch.contexts[these] - group.lows, batch.lengths[these]
        assert (group.keys, group.queries) == (keys.max(), lengths.max())
        assert group.queries == 1 or lengths.min() > 1
        if group.rows > 1:
            assert group.keys <= padding * max(keys.min(), 32)
            assert group.queries <= padding * max(lengths.min(), 32)
            assert group.rows * group.keys <= MAX_KEYS
            assert group.queries == 1 or group.rows * group.queries * group.keys <= MAX_PAIRS


def test_sequences_of_similar_length_decode_in_one_group():
    assert len(list(group_rows(batch_of([(100 + i, 1) for i in range(64)]), None, 2.0))) == 1


@given(rows=ROWS, window=st.one_of(st.none(), st.integers(1, 500)))
def test_a_query_sees_exactly_the_keys_within_its_window(rows, window):
    batch = batch_of([(start % 60, length % 30 + 1) for start, length in rows[:8]])
    for group in group_rows(batch, window, 2.0):
        seen = group.visible(window)
        for i, row in enumerate(range(group.first, group.last)):
            for j in range(batch.lengths[row]):
                position = batch.starts[row] + j
                first = 0 if window is None else max(0, position - window + 1)
                assert (np.flatnonzero(seen[i, j]) + group.lows[i]).tolist() == list(range(first, position + 1))
