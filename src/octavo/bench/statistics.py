"""How far two measurements differ, and whether that is more than chance. docs/metrics.md says why these tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.99
RESAMPLES = 1000
# Two-sided 99 % points of Student's t for 1, 2, ... 30 degrees of freedom.
_T = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip
_NORMAL = 2.576

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Change:
    """A relative change: 0.1 is 10 % more. low, high: the ends of its 99 % interval; None where there is none."""

    change: float
    low: float | None
    high: float | None


def welch(base: Sequence[float], other: Sequence[float]) -> Change | None:
    """From one value for each round. Welch's t interval for the difference of the logarithms' means, so the change is the ratio
    of the geometric means; rounds need not be as many on both sides. None where a value is not above 0, or a side has under two.
    """
    if min(len(base), len(other)) < 2 or min(*base, *other) <= 0:
        return None
    a, b = np.log(base), np.log(other)
    difference = float(b.mean() - a.mean())
    parts = [float(x.var(ddof=1)) / len(x) for x in (a, b)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Change(math.expm1(difference), math.expm1(difference), math.expm1(difference))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    half = t_point(freedom) * error
    return Change(math.expm1(difference), math.expm1(difference - half), math.expm1(difference + half))


def t_point(freedom: float) -> float:
    """The two-sided 99 % point of Student's t. Fractions of a degree are cut off, which makes intervals wider, not narrower."""
    whole = max(1, int(freedom))
    return _T[whole - 1] if whole <= len(_T) else _NORMAL * (1 + 1.91 / whole)


class Sample:
    """Values of one metric, each belonging to a request: what is resampled is requests, since values of one hang together."""

    def __init__(self, values: Sequence[Sequence[float]]):
        """``values``: those of each request."""
        owners = np.repeat(np.arange(len(values)), [len(one) for one in values])
        flat = np.array([value for one in values for value in one], float)
        order = np.argsort(flat, kind="stable")
        self.requests = len(values)
        self._values, self._owners = flat[order], owners[order]

    def statistic(self, name: str, times: NDArray[np.int64] | None = None) -> float:
        """mean, p50, p90, p99 or max, where request i occurs ``times[i]`` times; None: once each. nan without values."""
        weights = np.ones(len(self._values), np.int64) if times is None else times[self._owners]
        total = int(weights.sum())
        if total == 0:
            return math.nan
        if name == "mean":
            return float(weights @ self._values) / total
        share = 1.0 if name == "max" else int(name[1:]) / 100
        upto = weights.cumsum()
        place = share * (total - 1)
        below, above = (self._values[np.searchsorted(upto, whole, side="right")] for whole in (int(place), math.ceil(place)))
        return float(below + (place - int(place)) * (above - below))


def bootstrap(base: Sample, other: Sample, statistic: str, paired: bool, seed: int = 0) -> Change | None:
    """From the requests of one round each: the percentile bootstrap of the ratio. None where there is nothing to divide by.

    paired: request i is the same on both sides, and both are resampled together, so that differences in length do not count.
    """
    before = base.statistic(statistic)
    if not before > 0:
        return None
    change = other.statistic(statistic) / before - 1
    if math.isnan(change):
        return None
    random = np.random.default_rng(seed)
    ratios = []
    for _ in range(RESAMPLES):
        times = _draw(random, base.requests)
        others = times if paired else _draw(random, other.requests)
        ratios.append(other.statistic(statistic, others) / base.statistic(statistic, times))
    known: Floats = np.array(ratios)
    known = known[np.isfinite(known)]
    if not len(known):
        return Change(change, None, None)
    low, high = np.quantile(known, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)) - 1
    return Change(change, float(low), float(high))


def _draw(random: np.random.Generator, count: int) -> NDArray[np.int64]:
    return np.bincount(random.integers(0, count, count), minlength=count)
