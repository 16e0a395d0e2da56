"""Swap space: places for what preempted sequences had computed, and the copies to and from them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.swap import UNIT, SwapSpace, after, copies, places


def spread(pieces):
    return [start + i for start, length in pieces for i in range(length)]


def test_one_piece_where_there_is_one():
    space = SwapSpace(1000, 10 * UNIT)
    a, b = space.take(3 * UNIT), space.take(UNIT - 1)
    assert a.pieces == ((1000, 3 * UNIT),)
    assert b.pieces == ((1000 + 3 * UNIT, UNIT),)
    space.give_back(a)
    c = space.take(2 * UNIT)
    assert c.pieces == ((1000, 2 * UNIT),), "the shortest hole that is long enough"
    space.check()


def test_the_fewest_pieces_where_there_is_none():
    space = SwapSpace(0, 8 * UNIT)
    held = [space.take(UNIT) for _ in range(8)]
    for i in (0, 2, 3, 4, 6):
        space.give_back(held[i])
    assert space.take(6 * UNIT) is None
    assert space.free == 5 * UNIT, "a refused call takes nothing"
    assert space.take(4 * UNIT).pieces == ((2 * UNIT, 3 * UNIT), (0, UNIT))
    space.check()


def test_a_place_is_given_back_once():
    space = SwapSpace(0, 4 * UNIT)
    held = space.take(5)
    space.give_back(held)
    with pytest.raises(KeyError):
        space.give_back(held)


runs = st.integers(1, 8)


@given(runs, st.permutations(range(12)), st.integers(0, 40), st.integers(0, 40))
def test_places_of_a_row(run, order, first, length):
    row = np.array(order, np.int32) * run
    end = min(first + length, 12 * run)
    found = places(row, run, first, end)
    assert spread(found) == [order[p // run] * run + p % run for p in range(first, end)]
    assert all(a + n != b for (a, n), (b, _) in itertools.pairwise(found)), "neighbours are one piece"


pieces = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 9)), max_size=6)


@given(pieces, pieces, st.integers(0, 30))
def test_copies_pair_every_token(sources, targets, skipped):
    sources = after(sources, skipped)
    wanted = list(zip(spread(sources), spread(targets), strict=False))
    moves = copies(sources, targets)
    assert [(m.source + i, m.target + i) for m in moves for i in range(m.tokens)] == wanted
    assert len(moves) <= max(0, len(sources) + len(targets) - 1)


@given(pieces, st.integers(0, 60))
def test_after_leaves_the_rest(some, skipped):
    assert spread(after(some, skipped)) == spread(some)[skipped:]
