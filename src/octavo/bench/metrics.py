"""Metrics: from the records of requests to the figures that are reported. Pure functions; docs/metrics.md gives the formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from octavo.bench.goals import Goals
from octavo.bench.record import RequestRecord

LATENCIES = ("ttft_s", "itl_s", "icl_s", "tpot_s", "e2e_s")
RATES = ("output_tok_s", "total_tok_s", "requests_s")
STATISTICS = ("mean", "p50", "p90", "p99", "max")


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of a latency, in seconds; percentiles are interpolated linearly between the two nearest values."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None where there are no values."""
        array = np.fromiter(values, float)
        if not array.size:
            return None
        p50, p90, p99 = np.percentile(array, (50, 90, 99))
        return cls(float(array.mean()), float(p50), float(p90), float(p99), float(array.max()))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every goal: how many, per second, and of all that ended (failed ones included)."""

    goals: dict[str, float]
    requests: int
    requests_s: float
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures of one run. Latencies are over completed requests; None where there is no value.

    unfinished: requests that an interruption found under way. short: completed with fewer tokens than asked for.
    chunks: pieces of output that arrived, against ``output_tokens`` they hold.
    token_sources: how many requests' output tokens were counted by the server, by a tokenizer, or are the chunks.
    """

    ttft_s: Spread | None
    itl_s: Spread | None
    icl_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    output_tok_s: float | None
    total_tok_s: float | None
    requests_s: float | None
    duration_s: float
    completed: int
    unfinished: int
    short: int
    prompt_tokens: int
    output_tokens: int
    chunks: int
    token_sources: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    goodput: Goodput | None = None


def measure(records: Sequence[RequestRecord], end: float | None = None, goals: Goals | None = None) -> Metrics:
    """The metrics of a run. ``end``: the moment of an interruption; None: the run ended when its last request did."""
    completed = [r for r in records if r.completed]
    unfinished = [r for r in records if r.ended is None]
    failed = [r for r in records if r.error is not None]
    ends = [r.ended for r in records if r.ended is not None] + ([] if end is None else [end])
    duration = max(ends) - min(r.intended for r in records) if records and ends else 0.0
    counted = completed + [r for r in unfinished if r.moments]
    prompt_tokens, output_tokens = sum(r.prompt_tokens for r in counted), sum(r.count for r in counted)

    def rate(count: int) -> float | None:
        return count / duration if duration > 0 else None

    goodput = None
    if goals is not None:
        good, ended = sum(map(goals.met, completed)), len(completed) + len(failed)
        goodput = Goodput(dict(goals.bounds), good, rate(good) or 0.0, good / ended if ended else 0.0)
    return Metrics(
        ttft_s=Spread.of(r.ttft for r in completed if r.ttft is not None),
        itl_s=Spread.of(gap for r in completed for gap in token_gaps(r)),
        icl_s=Spread.of(gap for r in completed for gap in chunk_gaps(r)),
        tpot_s=Spread.of(r.tpot for r in completed if r.tpot is not None),
        e2e_s=Spread.of(r.e2e for r in completed if r.e2e is not None),
        output_tok_s=rate(output_tokens),
        total_tok_s=rate(prompt_tokens + output_tokens),
        requests_s=rate(len(completed)),
        duration_s=duration,
        completed=len(completed),
        unfinished=len(unfinished),
        short=sum(r.count < r.asked_tokens for r in completed),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        chunks=sum(len(r.moments) for r in counted),
        token_sources=dict(Counter(r.token_source for r in completed)),
        errors=dict(sorted(Counter(r.error for r in failed if r.error is not None).items())),
        goodput=goodput,
    )


def chunk_gaps(record: RequestRecord) -> list[float]:
    """The times from each piece of output to the next."""
    return gaps_of_tokens(record.moments, None)


def token_gaps(record: RequestRecord) -> list[float]:
    """The times from each token to the next, see ``gaps_of_tokens``."""
    return gaps_of_tokens(record.moments, record.tokens if record.stated else None)


def gaps_of_tokens(moments: Sequence[float], tokens: Sequence[int] | None) -> list[float]:
    """From pieces of output, of that many tokens each: a piece of n that comes g after the one before is n gaps of g / n.

    Where nobody knows how many tokens a piece holds (None), the pieces stand for tokens. Tokens that come with the first piece
    have no gap before them.
    """
    if tokens is None:
        return [after - before for before, after in pairwise(moments)]
    gaps: list[float] = []
    last = moments[0] if moments else 0.0
    for moment, count in zip(moments[1:], tokens[1:], strict=True):
        if count:
            gaps += [(moment - last) / count] * count
            last = moment
    return gaps
