"""Counting calls from Python into compiled computing code."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Launches:
    """A counter that is written around each call that computes or copies tensor elements: ``count(torch.mul(a, b))``.

    Counted is what torch's profiler shows as a top-level operator, except views and other calls that touch no element. An
    operator that is itself made of others (``rms_norm``) is one call from Python and counts once. What numpy does (a step's
    indices, the lookup of embeddings in the mapped file, the largest of a row of logits) is not counted.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, result: T) -> T:
        """``result``, of one launch."""
        self.count += 1
        return result
