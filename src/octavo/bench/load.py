"""Load: when requests are sent. Closed loop (a fixed number under way) or open loop (at moments that nothing delays)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.workload import BenchRequest
from octavo.errors import ConfigError

DEFAULT_CONCURRENCY = 16
DEFAULT_WARMUP = 4
DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How a workload is sent.

    concurrency: most requests under way at once. Without a rate the next one is sent as soon as one has ended (closed loop); with
                 a rate, those that find no room wait in the client, and that counts as latency. None: no limit.
    rate:        requests per second of an open loop; inf: all at once. None: the workload's own arrivals where it has them and
                 ``concurrency`` is None, else closed loop.
    burstiness:  shape of the gamma distribution of the gaps between arrivals: 1 is a Poisson process, less is burstier, inf is
                 even.
    warmup:      requests that are sent before and left out.
    timeout_s:   a request that takes longer than this from its send is given up, and is an error.
    seed:        of the arrivals.
    """

    concurrency: int | None = None
    rate: float | None = None
    burstiness: float = 1.0
    warmup: int = DEFAULT_WARMUP
    timeout_s: float = DEFAULT_TIMEOUT_S
    seed: int = 0

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}: an integer of at least 1 is accepted.")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate is {self.rate:g}: a number of requests per second above 0, or inf, is accepted.")
        if not self.burstiness > 0:
            raise ConfigError(f"burstiness is {self.burstiness:g}: a number above 0, or inf, is accepted.")
        if self.burstiness != 1.0 and (self.rate is None or math.isinf(self.rate)):
            raise ConfigError(f"burstiness is {self.burstiness:g}: it takes effect with a finite rate only.")
        if self.warmup < 0:
            raise ConfigError(f"warmup is {self.warmup}: an integer of at least 0 is accepted.")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout is {self.timeout_s:g}: a number of seconds above 0 is accepted.")

    def arrivals(self, requests: Sequence[BenchRequest]) -> list[float] | None:
        """When each request is to be sent, in seconds after the start; None in a closed loop."""
        if self.rate is not None:
            return arrivals(len(requests), self.rate, self.burstiness, self.seed)
        own = [r.arrival_s for r in requests if r.arrival_s is not None]
        return own if self.concurrency is None and own and len(own) == len(requests) else None

    def limit(self, requests: Sequence[BenchRequest]) -> int:
        """The most requests under way at once."""
        if self.concurrency is not None:
            return self.concurrency
        return DEFAULT_CONCURRENCY if self.arrivals(requests) is None else max(1, len(requests))

    def json(self, requests: Sequence[BenchRequest]) -> dict[str, Any]:
        """For documents; ``title`` is for people."""
        rate = self.rate if self.rate is None or math.isfinite(self.rate) else "inf"
        burstiness = self.burstiness if math.isfinite(self.burstiness) else "inf"
        return {
            "title": self.describe(requests),
            "loop": "closed" if self.arrivals(requests) is None else "open",
            "concurrency": self.limit(requests) if self.arrivals(requests) is None else self.concurrency,
            "rate": rate,
            "burstiness": burstiness,
            "warmup": self.warmup,
            "timeout_s": self.timeout_s,
            "seed": self.seed,
        }

    def describe(self, requests: Sequence[BenchRequest]) -> str:
        """For people."""
        limit = "" if self.concurrency is None else f", at most {self.concurrency} at once"
        if self.rate is not None and math.isinf(self.rate):
            return f"all sent at once{limit}"
        if self.rate is not None:
            kind = "Poisson" if self.burstiness == 1 else "even" if math.isinf(self.burstiness) else f"gamma {self.burstiness:g}"
            return f"open loop, {self.rate:g} requests/s ({kind}){limit}"
        if self.arrivals(requests) is not None:
            return "open loop, arrivals of the trace"
        return f"closed loop, {self.limit(requests)} at once"


def arrivals(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Moments of ``count`` arrivals, in seconds, the first after one gap.

    The gaps are gamma distributed with shape ``burstiness`` and mean 1 / rate, then scaled so that their sum is count / rate: the
    load offered is the one asked for, whatever the seed. With shape 1 that is a Poisson process given its number of arrivals.
    """
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [(i + 1) / rate for i in range(count)]
    import numpy as np  # here, since the command line reads this file at every start

    moments = np.random.default_rng(seed).gamma(burstiness, size=count).cumsum()
    return [float(moment) for moment in moments * (count / rate / moments[-1])] if count else []
