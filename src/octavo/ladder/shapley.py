"""Shapley shares: how much of a total each of several causes accounts for, whatever the order in which they are removed.

A cause's share is the mean, over all orders of removal, of what removing it changes at its turn (L. S. Shapley, "A Value for
n-Person Games", 1953). Shares add up to the total; here values are logarithms of times, so factors multiply to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import factorial

import numpy as np
import numpy.typing as npt

from octavo.ladder.causes import Removed

CONFIDENCE = 0.95
RESAMPLES = 2000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Factor:
    """A ratio of times. low, high: the ends of its 95 % bootstrap interval; None where there was one round only."""

    factor: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """What removing a cause gains. ``factor``: its Shapley share.

    alone: from the slow configuration. last: once all others are removed. least, most: of all orders.
    """

    cause: str
    factor: Factor
    alone: Factor
    last: Factor
    least: float
    most: float


def shares(times: Mapping[Removed, Sequence[float]], causes: Sequence[str]) -> list[Share]:
    """The share of each cause.

    times: by what was removed, for every subset of the causes: a time of each round, above 0, rounds in one order.

    A configuration's time is the median of its rounds. Spread: rounds are drawn again with replacement, the same for all
    configurations, since those of one round were measured close together.
    """
    arms = list(times)
    logs = np.log(np.array([times[arm] for arm in arms], float))
    drawn = _medians(logs)
    everything = frozenset(causes)
    found = []
    for cause in causes:
        steps = {arm: _difference(arms, arm, arm | {cause}) for arm in arms if cause not in arm}
        weighted = sum(_weight(len(arm), len(causes)) * step for arm, step in steps.items())
        gains = [float(np.exp(step @ drawn[0])) for step in steps.values()]
        found.append(
            Share(
                cause,
                _factor(np.asarray(weighted) @ drawn.T, logs.shape[1]),
                _factor(steps[frozenset()] @ drawn.T, logs.shape[1]),
                _factor(steps[everything - {cause}] @ drawn.T, logs.shape[1]),
                min(gains),
                max(gains),
            )
        )
    return found


def ratio(before: Sequence[float], after: Sequence[float]) -> Factor:
    """How many times as long ``before`` takes; both have a time of each round."""
    logs = np.log(np.array([before, after], float))
    return _factor(np.array([1.0, -1.0]) @ _medians(logs).T, logs.shape[1])


def _weight(size: int, causes: int) -> float:
    """The part of all orders in which exactly these ``size`` causes come before a given one."""
    return factorial(size) * factorial(causes - size - 1) / factorial(causes)


def _difference(arms: list[Removed], before: Removed, after: Removed) -> Floats:
    """``[arms]``: the vector that takes the difference between two of them."""
    vector = np.zeros(len(arms))
    vector[arms.index(before)], vector[arms.index(after)] = 1.0, -1.0
    return vector


def _medians(logs: Floats) -> Floats:
    """``[1 + RESAMPLES, arms]``: medians of all rounds, then of rounds drawn again."""
    rounds = logs.shape[1]
    if rounds == 1:
        return logs.T
    chosen = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    return np.concatenate([np.median(logs, 1)[None], np.median(logs[:, chosen], 2).T])


def _factor(differences: Floats, rounds: int) -> Factor:
    """From the logarithm as measured and those drawn again."""
    if rounds == 1:
        return Factor(float(np.exp(differences[0])), None, None)
    low, high = np.exp(np.quantile(differences[1:], ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)))
    return Factor(float(np.exp(differences[0])), float(low), float(high))
