"""What --quick chooses, from speeds made by hand."""

from __future__ import annotations

import pytest

from octavo.bench.suites import suite
from octavo.bench.workload import Workload
from octavo.config import EngineConfig
from octavo.sweep.grid import Grid
from octavo.sweep.point import Point
from octavo.sweep.quick import REQUESTS, Speed, choose
from tests.sweep.made import MIXED, setup

POINTS = tuple(Point(MIXED, setup("paged", size)) for size in (1, 16, 256))
GRID = Grid(POINTS, {(point.setup, 2**30): EngineConfig() for point in POINTS}, 8192, ())


def make(name: str, requests: int) -> Workload:
    return suite(name, requests=requests, max_model_len=8192)


def chosen(speed: Speed, seconds: float = 600.0) -> tuple[int, int]:
    found = choose(GRID, 3, seconds, speed, (3, (512,), (1, 8)), make)
    return found["rounds"], found["requests"]


def test_a_fast_machine_does_it_all() -> None:
    assert chosen(Speed(1e-5, 1e-4)) == (3, REQUESTS[0])


def test_a_slower_one_takes_fewer_requests_before_it_gives_up_rounds() -> None:
    rounds, requests = chosen(Speed(1e-3, 0.03))
    assert rounds == 3
    assert REQUESTS[-1] <= requests < REQUESTS[0]
    assert chosen(Speed(1e-2, 0.1))[0] < 3


def test_the_slowest_still_gets_one_round() -> None:
    assert chosen(Speed(10, 10)) == (1, REQUESTS[-1])


def test_what_is_chosen_fits_by_its_own_account() -> None:
    speed = Speed(1e-3, 0.03)
    rounds, requests = chosen(speed)
    total = 3 * speed.growth_s((512,), (1, 8)) + 3 * speed.run_s(make("mixed", requests), 16)
    assert rounds * total <= 0.75 * 600


def test_a_run_takes_as_many_steps_as_its_longest_output() -> None:
    two = Workload("two", make("mixed", 2).requests, 0, "")
    outputs = [request.output_tokens for request in two.requests]
    prompts = sum(request.prompt_tokens for request in two.requests)
    assert Speed(0.001, 0.01).run_s(two, 16) == pytest.approx(1.0 + prompts * 0.001 + max(max(outputs), sum(outputs)) * 0.01)
