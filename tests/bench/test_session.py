"""Several configurations and workloads, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from octavo.bench.arms import Arm
from octavo.bench.clientload import ClientLoad
from octavo.bench.interrupt import Interrupt
from octavo.bench.load import Load
from octavo.bench.report import Json, Result
from octavo.bench.run import Run
from octavo.bench.session import Session
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.errors import TargetError
from octavo.models.tokenizer import Tokenizer
from tests.bench.test_metrics import record


class ScriptedArm(Arm):
    """Writes down what is done with it."""

    def __init__(self, label: str, events: list[str], during: Callable[[str, int, Interrupt], None] = lambda *_: None):
        self.label = label
        self._events = events
        self._during = during

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None

    @property
    def max_model_len(self) -> int:
        return 100

    @property
    def config(self) -> Json:
        return {"title": self.label}

    def open(self) -> None:
        self._events.append(f"open {self.label}")

    def close(self) -> None:
        self._events.append(f"close {self.label}")

    def run(self, requests: Sequence[BenchRequest], load: Load, round: int, interrupt: Interrupt, title: str) -> Run:
        self._events.append(f"{title.split()[0]} on {self.label}, {round}")
        self._during(self.label, round, interrupt)
        return Run(records=[record(0, 0.0, (1.0,))], end=None, client=ClientLoad(None, None, None, True))


def workload(name: str) -> Workload:
    return Workload(name, (BenchRequest(0, (Segment(0, 10),), 1),), 0, "")


def session(arms: Sequence[Arm], names: Sequence[str], repeat: int) -> tuple[Session, list[str]]:
    told: list[str] = []

    def on_result(result: Result) -> None:
        told.append(f"{result.workload.name} {result.label} {len(result.runs)}")

    made = Session(arms, [workload(name) for name in names], Load(), repeat=repeat, on_result=on_result, say=lambda text: None)
    return made, told


def test_configurations_take_turns_and_one_engine_is_there_at_a_time() -> None:
    events: list[str] = []
    made, told = session([ScriptedArm("A", events), ScriptedArm("B", events)], ["x", "y"], 2)
    results = made.run()
    turn = [[f"open {arm}", f"x on {arm}, {{}}", f"y on {arm}, {{}}", f"close {arm}"] for arm in "AB"]
    expected = [line.format(round) for round in range(2) for arm in turn for line in arm]
    assert events[: len(expected)] == expected
    assert told == ["x A 2", "y A 2", "x B 2", "y B 2"]
    assert [(r.workload.name, r.label) for r in results] == [("x", "A"), ("x", "B"), ("y", "A"), ("y", "B")]
    assert not made.interrupted


def test_a_single_engine_is_kept_for_all_rounds() -> None:
    events: list[str] = []
    session([ScriptedArm("A", events)], ["x"], 3)[0].run()
    assert events.count("close A") == 1
    assert events[-1] == "close A"


def test_an_interruption_ends_everything_and_keeps_the_rounds_that_are_there() -> None:
    def during(label: str, round: int, interrupt: Interrupt) -> None:
        interrupt.wanted = (label, round) == ("B", 1)

    events: list[str] = []
    made, told = session([ScriptedArm(name, events, during) for name in "AB"], ["x"], 3)
    results = made.run()
    assert made.interrupted
    assert [len(r.runs) for r in results] == [2, 2]
    assert told == ["x A 2", "x B 2"]
    assert {"close A", "close B"} <= set(events[-2:])


def test_ctrl_c_while_an_engine_is_built_keeps_the_rounds_that_are_there() -> None:
    class Slow(ScriptedArm):
        def open(self) -> None:
            super().open()
            if self._events.count("open B") == 2:
                raise KeyboardInterrupt

    events: list[str] = []
    made, told = session([ScriptedArm("A", events), Slow("B", events)], ["x"], 3)
    assert [len(r.runs) for r in made.run()] == [2, 1]
    assert made.interrupted
    assert told == ["x A 2", "x B 1"]


def test_a_fault_after_the_first_round_keeps_what_there_is() -> None:
    def during(label: str, round: int, interrupt: Interrupt) -> None:
        if (label, round) == ("B", 1):
            raise TargetError("gone")

    events: list[str] = []
    made, told = session([ScriptedArm(name, events, during) for name in "AB"], ["x"], 3)
    assert [len(r.runs) for r in made.run()] == [2, 1]
    assert str(made.error) == "gone"
    assert told == ["x A 2", "x B 1"]
    made, _ = session(
        [ScriptedArm("B", events, during), ScriptedArm("B", events, lambda *_: during("B", 1, Interrupt()))], ["x"], 1
    )
    assert len(made.run()) == 1
    with pytest.raises(TargetError):
        session([ScriptedArm("A", events, lambda *_: during("B", 1, Interrupt()))], ["x"], 1)[0].run()


def test_an_engine_is_closed_when_another_one_fails() -> None:
    class Broken(ScriptedArm):
        def open(self) -> None:
            raise ValueError("no")

    events: list[str] = []
    with pytest.raises(ValueError, match="no"):
        session([ScriptedArm("A", events), Broken("B", events)], ["x"], 1)[0].run()
    assert "close A" in events
