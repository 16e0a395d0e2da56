"""How the time of a step grows with batch and context, and at which of them one configuration would be so many times slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

Point = tuple[int, int]
"""A batch: sequences, and tokens that all of them have together."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds of a step: ``step + sequence * sequences + token * tokens of all sequences``. No term is below 0."""

    step: float
    sequence: float
    token: float

    def at(self, sequences: float, context: float) -> float:
        """Seconds for sequences of ``context`` tokens on average."""
        return self.step + sequences * self.of_a_sequence(context)

    def of_a_sequence(self, context: float) -> float:
        """Seconds that one more sequence costs."""
        return self.sequence + self.token * context


def fit(points: Sequence[Point], seconds: Sequence[float]) -> Growth:
    """Least squares of the relative errors, with no term below 0: the best of the fits with some terms left out."""
    table = np.array([(1.0, sequences, tokens) for sequences, tokens in points])
    times = np.array(seconds)
    best, least = np.zeros(3), math.inf
    for count in range(1, 4):
        for kept in combinations(range(3), count):
            some = table[:, kept] / times[:, None]
            found, *_ = np.linalg.lstsq(some, np.ones(len(times)))
            error = float(((some @ found - 1.0) ** 2).sum())
            if (found >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(3), error
                best[list(kept)] = found
    return Growth(*best.tolist())


def batch_where(slow: Growth, fast: Growth, factor: float, context: float) -> float | None:
    """The least number of sequences of this context that makes slow ``factor`` times as slow as fast; None where none does."""
    return _least(slow.step - factor * fast.step, slow.of_a_sequence(context) - factor * fast.of_a_sequence(context))


def context_where(slow: Growth, fast: Growth, factor: float, sequences: float) -> float | None:
    """The least average context at which so many sequences make slow ``factor`` times as slow as fast; None where none does."""
    return _least(slow.at(sequences, 0) - factor * fast.at(sequences, 0), sequences * (slow.token - factor * fast.token))


def _least(constant: float, slope: float) -> float | None:
    """The least x, 1 or more, for which ``constant + slope * x`` is not below 0."""
    if constant + slope >= 0:
        return 1.0
    return -constant / slope if slope > 0 else None
