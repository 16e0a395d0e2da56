"""What --quick chooses, from speeds made by hand."""

from __future__ import annotations

import pytest

from octavo.bench.suites import suite
from octavo.bench.workload import Workload
from octavo.config import EngineConfig
from octavo.sweep.grid import Grid
from octavo.sweep.point import Point
from octavo.sweep.quick import AMOUNTS, Speed, choose
from tests.sweep.made import MIXED, setup

POINTS = tuple(Point(MIXED, setup("paged", size)) for size in (1, 16, 256))
GRID = Grid(POINTS, {(point.setup, 2**30): EngineConfig() for point in POINTS}, 8192, ())


def make(name: str, requests: int, context: int) -> Workload:
    return suite(name, requests=requests, max_model_len=context)


def chosen(speed: Speed, seconds: float = 600.0) -> tuple[int, int, int]:
    found = choose(GRID, 3, seconds, speed, (3, (512,), (1, 8)), make)
    return found["rounds"], found["requests"], found["context"]


def test_a_fast_machine_does_it_all() -> None:
    assert chosen(Speed(1e-5, 1e-4)) == (3, *AMOUNTS[0])


def test_a_slower_one_sends_less_before_it_gives_up_rounds() -> None:
    rounds, *amount = chosen(Speed(3e-3, 0.03))
    assert rounds == 3
    assert tuple(amount) in AMOUNTS[1:-1]
    assert chosen(Speed(5e-2, 1.0))[0] < 3


def test_the_slowest_still_gets_one_round() -> None:
    assert chosen(Speed(10, 10)) == (1, *AMOUNTS[-1])


def test_what_is_chosen_fits_by_its_own_account() -> None:
    speed = Speed(3e-3, 0.03)
    rounds, requests, context = chosen(speed)
    total = 3 * speed.growth_s((512,), (1, 8)) + 3 * speed.run_s(make("mixed", requests, context), 16)
    assert rounds * total <= 0.8 * 600


def test_a_run_takes_as_many_steps_as_its_longest_output() -> None:
    two = make("mixed", 2, 8192)
    outputs = [request.output_tokens for request in two.requests]
    prompts = sum(request.prompt_tokens for request in two.requests)
    prompts += min(512, two.requests[0].prompt_tokens)  # one to warm up
    assert Speed(0.001, 0.01).run_s(two, 16) == pytest.approx(1.0 + prompts * 0.001 + max(max(outputs), sum(outputs)) * 0.01)
