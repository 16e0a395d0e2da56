"""Fit length distributions to a trace, print them as ``octavo.bench.lengths`` has them, and say how far they are from it.

    python benchmarks/fit_lengths.py AzureLLMInferenceTrace_conv.csv

The fit is a table of quantiles with logarithms interpolated between them; a lognormal distribution with the logarithms' mean and
deviation stands beside it for comparison. Errors: the largest difference of the cumulative distributions (Kolmogorov-Smirnov),
and of the means. The rank correlation of prompt and output says whether drawing them independently is fair.
"""

from __future__ import annotations

import argparse
from math import erf, sqrt

import numpy as np

from octavo.bench.lengths import LEVELS, Lengths
from octavo.bench.traces import read_trace

DRAWS = 100_000


def fit(lengths: np.ndarray) -> Lengths:
    """The distribution's quantiles at LEVELS."""
    return Lengths(tuple(int(value) for value in np.round(np.quantile(lengths, LEVELS))))


def largest_difference(lengths: np.ndarray, fitted: Lengths) -> tuple[float, float]:
    """Kolmogorov-Smirnov distance, and the fitted distribution's mean."""
    drawn = np.sort([fitted.at((i + 0.5) / DRAWS) for i in range(DRAWS)])
    points = np.unique(np.concatenate([lengths, drawn]))
    ours = np.searchsorted(drawn, points, side="right") / len(drawn)
    theirs = np.searchsorted(np.sort(lengths), points, side="right") / len(lengths)
    return float(np.abs(ours - theirs).max()), float(drawn.mean())


def lognormal_difference(lengths: np.ndarray) -> float:
    """The same distance for a lognormal distribution."""
    logs = np.log(lengths)
    mean, deviation = logs.mean(), logs.std()
    points, counts = np.unique(logs, return_counts=True)
    theirs = np.cumsum(counts) / len(logs)
    ours = np.array([0.5 * (1 + erf((point - mean) / deviation / sqrt(2))) for point in points])
    return float(np.abs(ours - theirs).max())


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's coefficient; ties are broken by position."""
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", nargs="+", help="a file that octavo bench --trace reads")
    for path in parser.parse_args().trace:
        requests = read_trace(path).requests
        columns = {
            "prompt": np.array([request.prompt_tokens for request in requests]),
            "output": np.array([request.output_tokens for request in requests]),
        }
        print(f"{path}: {len(requests)} requests, rank correlation {rank_correlation(*columns.values()):.3f}")
        for name, lengths in columns.items():
            fitted = fit(lengths)
            distance, mean = largest_difference(lengths, fitted)
            print(f"  {name}: {fitted.values}")
            lognormal = lognormal_difference(lengths)
            print(f"    KS {distance:.4f} (lognormal {lognormal:.4f}), mean {mean:.1f} (trace {lengths.mean():.1f})")


if __name__ == "__main__":
    main()
