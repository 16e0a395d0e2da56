"""What a step's record says, against hand-computed values and against what the runner was really given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.core import EngineCore
from octavo.kv.view import KVView
from octavo.observe.read import Record, read_record
from octavo.observe.record import StepRecord
from octavo.runner.base import StepResult
from octavo.scheduler.plan import StepPlan
from tests.fake_engine import fake_engine, request, run
from tests.fake_runner import FakeRunner
from tests.observe.clock import ManualClock


def record_of(core: EngineCore) -> Record:
    return read_record(core.window(steps=16384))


def taking(clock: ManualClock, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which takes that long."""

    def slow(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        clock.pass_(seconds)
        return result

    return slow


class TimedRunner(FakeRunner):
    """Takes 8 s, of which it says that 5 were executing and 2 sampling."""

    def __init__(self, clock: ManualClock):
        super().__init__(4096, 8, 997)
        self.clock = clock

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        tokens = super().execute(plan, view).tokens
        self.clock.pass_(8.0)
        return StepResult(
            tokens,
            5.0,
            2.0,
            7,
            attention_launches=3,
            attention_s=2.0,
            kv_read_bytes=500,
            gather_s=1.0,
            gather_bytes=700,
            busy_s=4.0,
        )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock) -> EngineCore:
    """Planning takes 3 s, of which the KV cache 1; a view 0.5 s; committing 2.25 s, of which the KV cache 0.25 to release."""
    core = fake_engine(clock=clock)
    core.runner = TimedRunner(clock)
    core.kv.layout.admit = taking(clock, 1.0, core.kv.layout.admit)  # type: ignore[method-assign]
    core.kv.layout.release = taking(clock, 0.25, core.kv.layout.release)  # type: ignore[method-assign]
    core.kv.view = taking(clock, 0.5, core.kv.view)  # type: ignore[method-assign]
    core.scheduler.plan = taking(clock, 2.0, core.scheduler.plan)  # type: ignore[method-assign]
    core.scheduler.commit = taking(clock, 2.0, core.scheduler.commit)  # type: ignore[method-assign]
    return core


def test_a_step_s_time_is_told_apart(clock: ManualClock, timed: EngineCore) -> None:
    clock.pass_(10.0)  # nothing to do
    timed.add(request("a", [1, 2, 3], max_tokens=1))
    clock.pass_(0.75)  # other messages
    timed.step()
    (step,) = record_of(timed).steps
    begin = 1010.75
    assert (step.start, step.submitted, step.done, step.end) == (begin, begin + 3.5, begin + 11.5, begin + 13.75)
    assert (step.idle_s, step.between_s) == (10.0, 0.75)
    assert (step.schedule_s, step.allocate_s, step.view_s) == (2.0, 1.0, 0.5)
    assert (step.launch_s, step.execute_s, step.sample_s, step.wait_s) == (1.0, 5.0, 2.0, 7.0)
    assert (step.commit_s, step.release_s) == (2.0, 0.25)
    assert step.prepare_s == 1.75
    parts = step.schedule_s + step.prepare_s + step.launch_s + step.execute_s + step.sample_s + step.commit_s
    assert parts == step.total_s == 13.75
    assert (step.launches, step.attention_launches, step.kv_read_rate) == (7, 3, 250.0)
    assert (step.gather_s, step.gather_bytes) == (1.0, 700)
    assert step.busy_share(2) == 4.0 / (2 * 13.75)


def test_time_that_steps_share_is_that_of_one_of_them() -> None:
    """Planned from 0 to 1, while another computed until 3; computed from 3 to 7; taken up at 8, committed at 9."""
    moments = {"start": 0.0, "submitted": 3.0, "done": 7.0, "end": 9.0}
    step = StepRecord(step=2, **moments, queued_s=2.0, handover_s=1.0, busy_s=6.0)
    assert (step.total_s, step.span_s, step.busy_share(2)) == (9.0, 4.0, 0.75)
    alone = StepRecord(step=1, **moments, busy_s=6.0)
    assert (alone.span_s, alone.busy_share(2)) == (9.0, 6.0 / 18.0)


def test_a_gap_with_requests_in_it_is_no_waiting_for_work(clock: ManualClock, timed: EngineCore) -> None:
    timed.add(request("a", [1, 2, 3], max_tokens=2))
    timed.step()
    clock.pass_(4.0)
    timed.add(request("b", [1, 2, 3], max_tokens=2))
    timed.step()
    step = record_of(timed).steps[1]
    assert (step.idle_s, step.between_s) == (0.0, 4.0)


def test_what_an_abort_between_steps_releases_is_of_the_next_step_s_gap(clock: ManualClock, timed: EngineCore) -> None:
    timed.add(request("a", [1, 2, 3], max_tokens=5))
    timed.add(request("b", [1, 2, 3], max_tokens=5))
    timed.step()
    timed.abort(["a"])
    timed.step()
    step = record_of(timed).steps[1]
    assert (step.release_s, step.between_s, step.schedule_s, step.commit_s) == (0.25, 0.25, 2.0, 2.0)


def test_what_a_step_did_not_do_is_not_in_its_record(timed: EngineCore) -> None:
    timed.add(request("a", [1, 2, 3], max_tokens=3))
    for _ in range(3):
        timed.step()
    first, second, third = record_of(timed).steps
    assert (second.allocate_s, second.table_written_bytes, second.release_s) == (0.0, 0, 0.0)
    assert (first.prefill_tokens, first.decode_tokens) == (3, 0)
    assert (second.prefill_tokens, second.decode_tokens) == (0, 1)
    assert third.release_s == 0.25


def test_the_kv_cache_is_told_as_it_was_while_the_step_ran() -> None:
    core = fake_engine(capacity=100, block_size=16)
    core.add(request("a", list(range(20)), max_tokens=1))
    core.step()
    (step,) = record_of(core).steps
    assert (step.kv_reserved, step.kv_used, step.kv_wasted_inside, step.kv_wasted_outside) == (32, 20, 12, 4)
    assert (step.table_bytes, step.table_written_bytes) == (8, 8)  # two entries of 4 bytes
    assert (step.running, step.waiting) == (1, 0)


def test_prefix_counts_are_those_of_the_step() -> None:
    core = fake_engine(block_size=4, prefix_caching=True)
    prompt = list(range(11))
    for name in ("a", "b"):
        core.add(request(name, prompt, max_tokens=1))
        core.step()
    first, second = record_of(core).steps
    assert (first.prefix_queries, first.prefix_hits, first.prefix_rounding) == (11, 0, 3)
    assert (second.prefix_queries, second.prefix_hits, second.prefix_rounding) == (11, 8, 3)
    assert (first.match_s > 0, first.offer_s > 0) == (True, True)


def test_preempted_tokens_are_counted_when_they_are_computed_again() -> None:
    core = fake_engine(capacity=96, block_size=16, slots=4, max_model_len=96)
    lengths = {f"r{i}": 10 + 5 * i for i in range(4)}
    for name, length in lengths.items():
        core.add(request(name, [7] * length, max_tokens=40))
    run(core)
    found = record_of(core)
    preemptions = sum(step.preemptions for step in found.steps)
    assert preemptions == core.scheduler.preemptions == sum(len(life.preempted) for life in found.requests.values()) > 0
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    computed = sum(row.length for plan in runner.plans for row in plan.rows)
    once = sum(length + 39 for length in lengths.values())  # the last token of a request is never computed
    assert sum(step.recomputed_tokens for step in found.steps) == computed - once
    assert sum(step.tokens for step in found.steps) == computed


def test_every_row_is_counted_as_what_it_is() -> None:
    core = fake_engine(batch_tokens=16, slots=8)
    for i in range(12):
        core.add(request(f"r{i}", [3] * (1 + 7 * i), max_tokens=1 + i % 5))
    run(core)
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for step, plan in zip(record_of(core).steps, runner.plans, strict=True):
        assert (step.sequences, step.decode_tokens, step.tokens) == (len(plan.rows), plan.decode_tokens, plan.tokens)


def test_a_request_s_life_is_told_in_order() -> None:
    core = fake_engine()
    core.add(request("short", [1, 2, 3], max_tokens=1))
    core.add(request("long", [1, 2, 3, 4], max_tokens=6, priority=2))
    core.add(request("left", [1, 2], max_tokens=50))
    core.step()
    core.abort(["left"])
    run(core)
    core.text_time("long", 0.5)
    lives = record_of(core).requests
    assert Counter((life.reason, life.output_tokens) for life in lives.values()) == {
        ("length", 1): 1,
        ("length", 6): 1,
        ("abort", 1): 1,
    }
    for life in lives.values():
        assert life.queued is not None
        assert life.first_token is not None
        assert life.finished is not None
        assert life.queued <= life.scheduled[0].moment <= life.first_token <= life.finished
    assert (lives["long"].prompt_tokens, lives["long"].max_tokens, lives["long"].priority, lives["long"].text_s) == (4, 6, 2, 0.5)


def test_a_stop_string_is_a_stop() -> None:
    core = fake_engine()
    core.add(request("a", [1, 2], max_tokens=50))
    core.step()
    core.abort(["a"], stopped=True)
    assert record_of(core).requests["a"].reason == "stop"


def test_the_page_on_the_recorder_names_every_value() -> None:
    page = (Path(__file__).parents[2] / "docs" / "recorder.md").read_text()
    missing = [name for name in StepRecord.__struct_fields__ if f"`{name}`" not in page]
    assert not missing
