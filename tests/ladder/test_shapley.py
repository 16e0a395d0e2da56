"""Shares against examples computed by hand."""

from __future__ import annotations

import math

import pytest

from octavo.ladder.shapley import ratio, shares


def sets(**times: float | list[float]) -> dict[frozenset[str], list[float]]:
    """By the letters of what was removed; "slow" for nothing."""
    return {
        frozenset("" if name == "slow" else name): [time] if isinstance(time, float) else time for name, time in times.items()
    }


def test_two_causes_that_help_each_other() -> None:
    a, b = shares(sets(slow=12.0, a=6.0, b=8.0, ab=2.0), ["a", "b"])
    assert a.factor.factor == pytest.approx(math.sqrt(2 * 4))  # first: 12 / 6; second: 8 / 2
    assert b.factor.factor == pytest.approx(math.sqrt(1.5 * 3))
    assert a.factor.factor * b.factor.factor == pytest.approx(12 / 2)
    assert (a.alone.factor, a.last.factor, a.least, a.most) == pytest.approx((2, 4, 2, 4))
    assert (b.alone.factor, b.last.factor, b.least, b.most) == pytest.approx((1.5, 3, 1.5, 3))


def test_three_causes_of_which_one_does_nothing() -> None:
    """a and b gain a factor of 16 together and nothing apart; c gains nothing whatever else is removed."""
    times = sets(slow=16.0, a=16.0, b=16.0, c=16.0, ab=1.0, ac=16.0, bc=16.0, abc=1.0)
    a, b, c = shares(times, ["a", "b", "c"])
    assert [share.factor.factor for share in (a, b, c)] == pytest.approx([4, 4, 1])
    assert (a.alone.factor, a.last.factor, a.least, a.most) == pytest.approx((1, 16, 1, 16))


def test_weights_of_orders() -> None:
    """Only removing a first gains anything: that is a third of all orders of three."""
    times = sets(slow=8.0, a=1.0, b=1.0, c=1.0, ab=1.0, ac=1.0, bc=1.0, abc=1.0)
    for share in shares(times, ["a", "b", "c"]):
        assert share.factor.factor == pytest.approx(2)


def test_what_drifts_from_round_to_round_is_no_spread() -> None:
    """Every configuration is three times as slow in the last round."""
    (a,) = shares(sets(slow=[4.0, 4.0, 12.0], a=[2.0, 2.0, 6.0]), ["a"])
    assert (a.factor.factor, a.factor.low, a.factor.high) == pytest.approx((2, 2, 2))


def test_spread_covers_what_rounds_gave() -> None:
    found = ratio([2.0, 3.0, 4.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    assert found.factor == pytest.approx(3)
    assert found.low is not None
    assert found.high is not None
    assert 2 <= found.low < 3 <= found.high <= 4


def test_one_round_has_no_spread() -> None:
    (a,) = shares(sets(slow=4.0, a=2.0), ["a"])
    assert (a.factor.factor, a.factor.low, a.factor.high) == (pytest.approx(2), None, None)
