"""Session: every workload on every configuration, as often as asked, in turn, with the table of each as soon as it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from octavo.bench.arms import Arm
from octavo.bench.goals import Goals
from octavo.bench.interrupt import Interrupt
from octavo.bench.load import Load
from octavo.bench.report import Result
from octavo.bench.workload import Workload
from octavo.errors import OctavoError


class Session:
    """Rounds are outermost and configurations take turns within them (A B A B), so that a machine that drifts does not decide.

    on_result: called with a result once all its rounds are there, or when the session ended before.
    say:       what happens, for people.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        workloads: Sequence[Workload],
        load: Load,
        *,
        repeat: int = 1,
        goals: Goals | None = None,
        on_result: Callable[[Result], None] = lambda result: None,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ):
        self.interrupted = False
        self.error: OctavoError | None = None  # what ended it after it had results
        self.results = [Result(workload, arm.label, {}, goals) for workload in workloads for arm in arms]
        self._arms = arms
        self._workloads = workloads
        self._load = load
        self._repeat = repeat
        self._on_result = on_result
        self._say = say

    def run(self) -> list[Result]:
        """The results that have a round at least, in order of workload, then configuration.

        Raises OctavoError for what goes wrong before there is any; later it ends the session and is ``error``.
        """
        try:
            for round in range(self._repeat):
                for place, arm in enumerate(self._arms):
                    self._run_arm(round, place, arm)
                    if self.interrupted:
                        break
                if self.interrupted:
                    break
        except KeyboardInterrupt:  # while an engine was built
            self.interrupted = True
        except OctavoError as error:
            if not any(result.runs for result in self.results):
                raise
            self.error = error
            self._say(f"octavo: {error}")
        finally:
            for arm in self._arms:
                arm.close()
        if self.interrupted or self.error is not None:
            for result in self.results:
                if 0 < len(result.runs) < self._repeat:
                    self._on_result(result)
        return [result for result in self.results if result.runs]

    def _run_arm(self, round: int, place: int, arm: Arm) -> None:
        arm.open()
        for number, workload in enumerate(self._workloads):
            result = self.results[number * len(self._arms) + place]
            load = self._load
            result.config = arm.config | {"load": load.json(workload.requests)}
            with Interrupt() as interrupt:
                title = " ".join(
                    filter(None, (workload.name, arm.label, f"{round + 1}/{self._repeat}" if self._repeat > 1 else ""))
                )
                run = arm.run(workload.requests, load, round, interrupt, title)
                self.interrupted = interrupt.wanted
            if run.records:
                result.runs.append(run)
            if len(result.runs) == self._repeat:
                self._on_result(result)
            elif not self.interrupted:
                self._say(f"{title}: done")
            if self.interrupted:
                return
        if len(self._arms) > 1:
            arm.close()
