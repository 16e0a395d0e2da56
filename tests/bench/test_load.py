"""When requests are sent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.bench.load import DEFAULT_CONCURRENCY, Load, arrivals
from octavo.bench.workload import BenchRequest, Segment
from octavo.errors import ConfigError


def requests(count: int, arrival: float | None = None) -> list[BenchRequest]:
    return [BenchRequest(i, (Segment(i, 1),), 1, None if arrival is None else arrival * i) for i in range(count)]


def test_without_a_rate_the_loop_is_closed() -> None:
    assert Load().arrivals(requests(3)) is None
    assert Load().limit(requests(3)) == DEFAULT_CONCURRENCY
    assert Load(concurrency=2).limit(requests(3)) == 2


def test_a_traces_own_arrivals_hold_unless_a_load_is_asked_for() -> None:
    trace = requests(3, 0.5)
    assert Load().arrivals(trace) == [0.0, 0.5, 1.0]
    assert Load().limit(trace) == 3  # nobody waits in the client
    assert Load(concurrency=2).arrivals(trace) is None
    assert Load(rate=math.inf).arrivals(trace) == [0.0, 0.0, 0.0]


def test_the_rate_offered_is_the_one_asked_for() -> None:
    for burstiness in (0.25, 1.0, 9.0, math.inf):
        moments = arrivals(50, 4.0, burstiness, seed=3)
        assert moments[-1] == pytest.approx(50 / 4)
        assert moments == sorted(moments)
        assert moments[0] > 0
    assert arrivals(4, 2.0, math.inf) == [0.5, 1.0, 1.5, 2.0]
    assert arrivals(0, 2.0) == []


def test_gaps_are_as_irregular_as_asked_for() -> None:
    for burstiness in (0.25, 1.0, 4.0):  # the coefficient of variation of a gamma distribution is 1 / sqrt(shape)
        gaps = np.diff(arrivals(20_000, 1.0, burstiness, seed=1))
        assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_the_seed_decides() -> None:
    assert arrivals(5, 1.0, seed=1) == arrivals(5, 1.0, seed=1) != arrivals(5, 1.0, seed=2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"rate": 0.0}, "rate is 0"),
        ({"rate": math.nan}, "rate is nan"),
        ({"rate": 1.0, "burstiness": 0.0}, "burstiness is 0"),
        ({"burstiness": 2.0}, "takes effect with a finite rate"),
        ({"burstiness": 2.0, "rate": math.inf}, "takes effect with a finite rate"),
        ({"warmup": -1}, "warmup is -1"),
        ({"timeout_s": 0.0}, "timeout is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Load(**fields)  # type: ignore[arg-type]
