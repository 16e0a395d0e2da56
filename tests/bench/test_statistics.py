"""Differences and their intervals, against values worked out by hand and against plain resampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.statistics import Sample, bootstrap, t_point, welch


def test_welchs_interval_by_hand() -> None:
    """Logarithms 0, 0.02 against 0.10, 0.14: means 0.01 and 0.12; variances of the means 0.0001 and 0.0004; so the error is
    sqrt(0.0005), the degrees of freedom 0.0005^2 / (0.0001^2 + 0.0004^2) = 1.47, cut to 1, where t is 63.657."""
    found = welch([1.0, math.exp(0.02)], [math.exp(0.10), math.exp(0.14)])
    assert found is not None
    half = 63.657 * math.sqrt(0.0005)
    assert found.change == pytest.approx(math.exp(0.11) - 1)
    assert found.low == pytest.approx(math.exp(0.11 - half) - 1)
    assert found.high == pytest.approx(math.exp(0.11 + half) - 1)


def test_one_round_has_no_interval_over_rounds() -> None:
    assert welch([1.0], [2.0, 3.0]) is None
    assert welch([1.0, 0.0], [2.0, 3.0]) is None


def test_rounds_that_do_not_vary_differ_for_certain() -> None:
    found = welch([2.0, 2.0], [3.0, 3.0])
    assert found is not None
    assert found.low == found.high == found.change == pytest.approx(0.5)


def test_t_beyond_the_table() -> None:
    assert [t_point(freedom) for freedom in (0.5, 1.9, 2.0, 30.7)] == [63.657, 63.657, 9.925, 2.750]
    assert t_point(40) == pytest.approx(2.704, abs=0.01)  # printed tables
    assert t_point(120) == pytest.approx(2.617, abs=0.01)


def test_two_rounds_of_the_same_thing_are_mostly_told_as_the_same() -> None:
    random = np.random.default_rng(0)
    beyond = 0
    for _ in range(2000):
        found = welch(*(np.exp(random.normal(0, 0.05, 4)).tolist() for _ in range(2)))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        beyond += not found.low <= 0 <= found.high
    assert beyond / 2000 < 0.015  # of a 99 % interval


@given(
    st.lists(st.lists(st.floats(0, 100), max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_statistics_of_a_resample_are_those_of_the_values_written_out(values: list[list[float]], times: list[int]) -> None:
    weights = np.array(times[: len(values)])
    written = [value for one, count in zip(values, weights, strict=True) for value in one * count]
    sample = Sample(values)
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        found = sample.statistic(name, weights)
        assert math.isnan(found) if not written else found == pytest.approx(np.percentile(written, share), abs=1e-9)
    found = sample.statistic("mean", weights)
    assert math.isnan(found) if not written else found == pytest.approx(np.mean(written), abs=1e-9)


def test_the_same_requests_do_not_differ() -> None:
    sample = Sample([[1.0], [5.0], [9.0]])
    found = bootstrap(sample, sample, "mean", paired=True)
    assert found is not None
    assert (found.change, found.low, found.high) == (0.0, 0.0, 0.0)


def test_pairing_takes_out_what_requests_differ_in() -> None:
    random = np.random.default_rng(1)
    lengths = random.uniform(1, 100, 40)
    a, b = Sample([[x] for x in lengths]), Sample([[1.1 * x] for x in lengths])
    paired, apart = bootstrap(a, b, "mean", paired=True), bootstrap(a, b, "mean", paired=False)
    assert paired is not None
    assert apart is not None
    assert (paired.low, paired.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert apart.low is not None
    assert apart.high is not None
    assert apart.low < 0 < apart.high


def test_nothing_to_divide_by() -> None:
    assert bootstrap(Sample([[]]), Sample([[1.0]]), "p50", paired=False) is None
    assert bootstrap(Sample([[1.0]]), Sample([[]]), "p50", paired=False) is None
    assert bootstrap(Sample([[0.0]]), Sample([[1.0]]), "p50", paired=False) is None
