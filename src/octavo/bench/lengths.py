"""Length distributions, fitted to public traces."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log

LEVELS = (0, 0.01, *(i / 40 for i in range(1, 40)), 0.99, 0.995, 0.999, 1)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens as its quantiles at LEVELS; between two of them the logarithm is linear.

    values: the quantiles, at least 1, not falling.
    low, high: the part of the distribution that is drawn from, as quantile levels.
    """

    values: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def between(self, low: float, high: float) -> Lengths:
        """The part between two quantile levels, as a distribution of its own."""
        return Lengths(self.values, low, high)

    def at(self, level: float) -> int:
        """The quantile at a level from 0 to 1."""
        level = self.low + (self.high - self.low) * level
        i = min(bisect_right(LEVELS, level), len(LEVELS) - 1)
        share = (level - LEVELS[i - 1]) / (LEVELS[i] - LEVELS[i - 1])
        return round(exp(log(self.values[i - 1]) * (1 - share) + log(self.values[i]) * share))


# The Azure LLM inference traces of 2023 (CC-BY, https://github.com/Azure/AzurePublicDataset; Patel et al., "Splitwise: Efficient
# generative LLM inference using phase splitting", ISCA 2024), fitted by benchmarks/fit_lengths.py. Errors: docs/workloads.md.
# fmt: off
CONVERSATION_PROMPT = Lengths((
    2, 29, 120, 181, 200, 207, 235, 372, 379, 387, 393, 396, 400, 403, 407, 414, 428, 703, 922, 984, 1005, 1020, 1034, 1045, 1058,
    1071, 1083, 1097, 1112, 1130, 1153, 1189, 1277, 1315, 1434, 1876, 2309, 2734, 4075, 4083, 4092, 4142, 4831, 6179, 14050,
))
CONVERSATION_OUTPUT = Lengths((
    7, 16, 28, 41, 48, 54, 60, 67, 72, 77, 82, 85, 88, 91, 93, 96, 99, 103, 108, 113, 120, 129, 139, 151, 162, 177, 195, 217, 373,
    384, 391, 395, 396, 400, 406, 411, 416, 424, 430, 451, 522, 601, 643, 954, 1000,
))
CODE_PROMPT = Lengths((
    3, 17, 44, 75, 102, 147, 185, 232, 299, 386, 484, 578, 679, 770, 863, 939, 1016, 1075, 1153, 1261, 1370, 1469, 1585, 1690,
    1798, 1909, 2048, 2164, 2305, 2433, 2578, 2744, 2942, 3192, 3538, 3920, 4434, 5188, 6097, 7303, 7435, 7436, 7436, 7437, 7437,
))
CODE_OUTPUT = Lengths((
    6, 6, 6, 6, 6, 7, 7, 7, 8, 8, 9, 9, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 16, 16, 18, 19, 20, 22, 24, 26, 29, 33,
    39, 46, 55, 69, 90, 145, 251, 359, 825, 1899,
))
# fmt: on
