"""Overlapped scheduling: a step is planned while another computes, and nothing of that shows in what requests get."""

from __future__ import annotations

import threading
import time

import pytest

from octavo.engine.core import EngineCore
from octavo.kv.view import KVView
from octavo.observe.read import read_record
from octavo.runner.base import StepResult
from octavo.scheduler.plan import StepPlan
from tests.fake_engine import VOCAB, fake_engine, request, run
from tests.fake_runner import FakeRunner, continuation

PROMPT = [5, 6, 7]


def overlapped(**settings: object) -> EngineCore:
    return fake_engine(overlapped=True, **settings)  # type: ignore[arg-type]


class HeldRunner(FakeRunner):
    """Computes a step once it is let go."""

    def __init__(self) -> None:
        super().__init__(4096, 8, VOCAB)
        self.go = threading.Semaphore(0)

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        assert self.go.acquire(timeout=20), "nobody let the step go"
        return super().execute(plan, view)


def test_the_next_step_is_planned_while_one_computes() -> None:
    core = overlapped()
    core.runner = runner = HeldRunner()
    planned: list[int] = []
    plan = core.scheduler.plan

    def planning() -> StepPlan:
        made = plan()
        planned.append(made.step)
        if made.step == 2:  # step 1 cannot be done yet: it is let go by this
            runner.go.release()
        return made

    core.scheduler.plan = planning  # type: ignore[method-assign]
    core.add(request("a", PROMPT, max_tokens=8))
    (update,) = core.step().updates
    assert planned == [1, 2]
    assert update.tokens == continuation(PROMPT, 1, VOCAB)
    runner.go.release(20)
    assert run(core)["a"] == continuation(PROMPT, 8, VOCAB)[1:]


def test_a_step_refers_to_a_token_that_nobody_knows_yet() -> None:
    core = overlapped()
    core.add(request("a", PROMPT, max_tokens=8))
    run(core)
    rows = [plan.rows[0] for plan in core.runner.plans]  # type: ignore[attr-defined]
    assert [row.tokens for row in rows] == [PROMPT, *[None] * 7]
    assert [row.start for row in rows] == [0, 3, 4, 5, 6, 7, 8, 9]


def test_no_step_is_computed_for_a_length_that_is_known() -> None:
    core = overlapped()
    core.add(request("a", PROMPT, max_tokens=3))
    run(core)
    assert len(core.runner.plans) == 3  # type: ignore[attr-defined]


def test_what_was_under_way_when_a_request_ended_is_dropped() -> None:
    said = continuation(PROMPT, 5, VOCAB)
    core = overlapped(eos=(said[2],))
    core.add(request("a", PROMPT, max_tokens=20))
    tokens: list[int] = []
    while not (updates := core.step().updates)[-1:] or updates[-1].finish is None:
        tokens += [token for update in updates for token in update.tokens]
    tokens += updates[-1].tokens
    assert (tokens, updates[-1].finish) == (said[:3], "stop")
    assert core.has_work, "a step of it is under way"
    core.check()
    assert core.step().updates == []
    assert not core.has_work
    core.check()
    assert core.stats().kv_reserved == 0


def test_an_aborted_request_keeps_its_slot_until_its_step_is_done() -> None:
    core = overlapped(slots=1)
    core.add(request("a", PROMPT, max_tokens=50))
    core.step()
    core.step()
    (update,) = core.abort(["a"])
    assert update.finish == "abort"
    core.add(request("a", [9, 9], max_tokens=4))  # the same name again: its own tokens, and those alone
    assert run(core) == {"a": continuation([9, 9], 4, VOCAB)}
    assert core.stats().kv_reserved == 0


def test_preemption_waits_until_nothing_is_under_way() -> None:
    core = overlapped(capacity=96, block_size=16, slots=4, max_model_len=96)
    prompts = {name: [i + 1] * 14 for i, name in enumerate("abcd")}
    for name, prompt in prompts.items():
        core.add(request(name, prompt, max_tokens=40))
    assert run(core) == {name: continuation(prompt, 40, VOCAB) for name, prompt in prompts.items()}
    assert core.stats().preemptions > 0


def test_what_the_runner_raises_reaches_the_caller() -> None:
    core = overlapped()

    def broken(plan: StepPlan, view: KVView) -> StepResult:
        raise RuntimeError("the device is gone")

    core.runner.execute = broken  # type: ignore[method-assign]
    core.add(request("a", PROMPT))
    with pytest.raises(RuntimeError, match="the device is gone"):
        core.step()


def test_closing_waits_for_what_is_under_way() -> None:
    core = overlapped()
    core.add(request("a", PROMPT, max_tokens=50))
    core.step()
    core.close()
    assert not core.has_work
    core.check()


class SleepingRunner(FakeRunner):
    """A device that needs no core of this machine."""

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        time.sleep(0.02)
        return super().execute(plan, view)


def test_the_record_says_what_was_hidden() -> None:
    core = overlapped()
    core.runner = SleepingRunner(4096, 8, VOCAB)
    core.add(request("a", PROMPT, max_tokens=12))
    run(core)
    steps = read_record(core.window(steps=100)).steps
    assert [step.step for step in steps] == list(range(1, 13))
    assert all(step.hidden_s <= step.schedule_s + step.prepare_s + step.commit_s + 1e-6 for step in steps)
    assert all(step.hidden_s > 0 for step in steps[1:])
    for step in steps:
        planning = step.schedule_s + step.match_s + step.allocate_s + step.extend_s + step.table_s + step.view_s + step.queued_s
        assert step.submitted - step.start == pytest.approx(planning, abs=1e-6)


def test_without_it_nothing_is_hidden() -> None:
    core = fake_engine()
    core.add(request("a", PROMPT, max_tokens=5))
    run(core)
    assert {step.hidden_s + step.queued_s + step.handover_s for step in read_record(core.window(steps=9)).steps} == {0.0}
