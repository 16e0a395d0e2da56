"""Crossover: the context at which one setup's decode step becomes faster than another's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.sweep.noise import difference

Times = Mapping[int, Sequence[float]]  # context -> seconds of a step, one for each round


@dataclass(frozen=True, slots=True)
class Crossover:
    """Below ``context`` tokens ``below`` is faster, above it ``above`` is. batch: sequences in the step."""

    below: str
    above: str
    batch: int
    context: float


def crossover(first: str, second: str, batch: int, a: Times, b: Times) -> Crossover | None:
    """Where two setups change places, from the contexts that both were measured at; None where they do not, or where either lead
    is within the noise.

    The place is interpolated between the last context at which the one leads beyond noise and the first at which the other does,
    linearly in the logarithms of context and of the ratio.
    """
    last: tuple[int, float] | None = None  # the latest lead beyond noise: context, log ratio of b to a
    for context in sorted(a.keys() & b.keys()):
        if not difference(a[context], b[context]).beyond:
            continue
        ratio = math.log(statistics.median(b[context]) / statistics.median(a[context]))
        if last is not None and (last[1] > 0) != (ratio > 0):
            (before, old), span = last, math.log(context / last[0])
            at = before * math.exp(span * old / (old - ratio))
            return Crossover(*((first, second) if old > 0 else (second, first)), batch, at)
        last = context, ratio
    return None
