"""Fits against times that follow a known formula."""

from __future__ import annotations

import pytest

from octavo.ladder.growth import Growth, batch_where, context_where, fit

POINTS = [(2, 1000), (2, 4000), (8, 4000), (8, 16000)]


def at(growth: Growth) -> list[float]:
    return [growth.step + growth.sequence * sequences + growth.token * tokens for sequences, tokens in POINTS]


@pytest.mark.parametrize(
    "growth", [Growth(10e-3, 0.5e-3, 2e-6), Growth(10e-3, 0.0, 2e-6), Growth(0.0, 0.0, 1e-6), Growth(5e-3, 0.0, 0.0)]
)
def test_what_follows_the_formula_is_found_again(growth: Growth) -> None:
    found = fit(POINTS, at(growth))
    assert (found.step, found.sequence, found.token) == pytest.approx((growth.step, growth.sequence, growth.token), abs=1e-9)


def test_no_term_is_below_nothing() -> None:
    """A least squares fit of these would say that sequences make a step shorter."""
    found = fit(POINTS, [10e-3, 16e-3, 9e-3, 33e-3])
    assert min(found.step, found.sequence, found.token) >= 0


def test_where_a_factor_is_reached() -> None:
    """With 100 tokens each, slow takes 10 + 7 n and fast 10 + n: a factor of 4 where 10 + 7 n = 40 + 4 n."""
    slow, fast = Growth(10, 5, 0.02), Growth(10, 0.8, 0.002)
    assert batch_where(slow, fast, 4, context=100) == pytest.approx(10)
    assert slow.at(10, 100) == pytest.approx(4 * fast.at(10, 100))
    assert batch_where(slow, fast, 8, context=100) is None  # it tends to 7
    # 10 of them with c tokens: 60 + 0.2 c and 18 + 0.02 c, so 60 + 0.2 c = 72 + 0.08 c.
    assert context_where(slow, fast, 4, sequences=10) == pytest.approx(100)
    assert context_where(slow, fast, 1, sequences=10) == 1
    assert context_where(slow, fast, 10, sequences=10) is None
