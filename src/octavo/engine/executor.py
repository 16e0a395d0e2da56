"""Executor: hands steps to the runner, in this thread or in one of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from queue import SimpleQueue

from octavo.kv.view import KVView
from octavo.observe.clock import Clock
from octavo.runner.base import Runner, StepResult
from octavo.scheduler.plan import StepPlan


class Flight:
    """A step on its way through the runner.

    began, done: when the runner took it up and when its result was there, by the engine's clock.
    """

    def __init__(self, plan: StepPlan, view: KVView):
        self.plan = plan
        self.view = view
        self.began = 0.0
        self.done = 0.0
        self.computed = threading.Event()
        self.result: StepResult | None = None
        self.error: BaseException | None = None

    def run(self, runner: Runner, clock: Clock) -> None:
        """Compute it. What the runner raises is kept for whoever waits."""
        self.began = clock.now()
        try:
            self.view.prepare()
            self.result = runner.execute(self.plan, self.view)
        except BaseException as error:
            self.error = error
        self.done = clock.now()
        self.computed.set()

    def landed(self) -> StepResult:
        """Wait for the result. Raises what the runner raised."""
        self.computed.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class Executor(ABC):
    """Computes the steps that are submitted, one after the other, in order, on ``runner``."""

    def __init__(self, runner: Runner, clock: Clock):
        self.runner = runner
        self._clock = clock

    @abstractmethod
    def submit(self, flight: Flight) -> None:
        """Compute this step after those that were submitted before it."""

    @abstractmethod
    def close(self) -> None:
        """Wait for what was submitted, take no more, and close the runner, in the thread that it has run in."""


class DirectExecutor(Executor):
    """Computes in the caller's thread, at once."""

    def submit(self, flight: Flight) -> None:
        flight.run(self.runner, self._clock)

    def close(self) -> None:
        self.runner.close()


class ThreadExecutor(Executor):
    """Computes in a thread of its own, so that the next step can be planned meanwhile. A step that is submitted while another
    computes begins as soon as that one ends, without waiting for the caller's thread."""

    def __init__(self, runner: Runner, clock: Clock):
        super().__init__(runner, clock)
        self._submitted: SimpleQueue[Flight | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="octavo-step", daemon=True)
        self._thread.start()

    def submit(self, flight: Flight) -> None:
        self._submitted.put(flight)

    def close(self) -> None:
        self._submitted.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (flight := self._submitted.get()) is not None:
            flight.run(self.runner, self._clock)
        self.runner.close()
