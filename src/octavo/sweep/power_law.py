"""Power law: time = factor * context^a * batch^b, fitted to measured step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from octavo.bench.report import Json
from octavo.bench.statistics import t_point

Sample = tuple[int, int, float]  # context, batch, seconds


@dataclass(frozen=True, slots=True)
class Exponent:
    """value, and half of its 99 % interval; None where there are no more points than parameters."""

    value: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.error is None else f" +- {self.error:.2f}")


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """context, batch: the exponents; None for what was not varied. worst: the largest relative deviation of a point from the fit.

    A decode step reads the weights once and keys and values in proportion to context x batch, so no power law is exact: the
    exponents say how far a range is from the first regime (0) and the second (1).
    """

    context: Exponent | None
    batch: Exponent | None
    worst: float

    def json(self) -> Json:
        return asdict(self)


def fit(samples: Sequence[Sample]) -> PowerLaw | None:
    """Least squares on the logarithms, all samples alike; several of one context and batch may be given. None where neither was
    varied."""
    columns = {}
    for name, place in (("context", 0), ("batch", 1)):
        if len({sample[place] for sample in samples}) > 1:
            columns[name] = np.log([float(sample[place]) for sample in samples])
    if not columns:
        return None
    matrix = np.column_stack([np.ones(len(samples)), *columns.values()])
    target = np.log([sample[2] for sample in samples])
    solution, _, rank, _ = np.linalg.lstsq(matrix, target, rcond=None)
    if rank < matrix.shape[1]:  # context and batch were varied together only
        return None
    residuals = target - matrix @ solution
    freedom = len(samples) - len(solution)
    exponents: dict[str, Exponent] = {}
    for i, name in enumerate(columns, 1):
        error = None
        if freedom > 0:
            variance = float(residuals @ residuals) / freedom * float(np.linalg.inv(matrix.T @ matrix)[i, i])
            error = t_point(freedom) * math.sqrt(variance)
        exponents[name] = Exponent(float(solution[i]), error)
    worst = float(np.abs(np.expm1(residuals)).max())
    return PowerLaw(exponents.get("context"), exponents.get("batch"), worst)
