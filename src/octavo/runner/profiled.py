"""ProfiledRunner: torch's profiler around some steps of the torch runner."""

from __future__ import annotations

import json
import sys
import time
import weakref
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from octavo.kv.view import KVView
from octavo.observe.profile import CLOCKS, STEP
from octavo.runner.base import Runner, StepResult
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.plan import StepPlan

SKIPPED = 3  # first steps: memory is taken and threads are made in them


class ProfiledRunner(Runner):
    """Executes as ``runner`` does. After the first SKIPPED steps, ``steps`` of them run under the profiler; then its trace is
    written to ``path``, in one pause, and later steps are as without it. Where there are fewer, ``close`` writes what there is.
    """

    def __init__(self, runner: TorchRunner, steps: int, path: Path):
        self.threads = runner.threads
        self._runner = runner
        self._profile = _Profile(path)
        self._last = SKIPPED + steps
        self._executed = 0
        self._close = weakref.finalize(self, self._profile.close)

    def describe(self) -> dict[str, str]:
        return self._runner.describe()

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        self._executed += 1
        if not SKIPPED < self._executed <= self._last:
            return self._runner.execute(plan, view)
        if self._executed == SKIPPED + 1:
            self._profile.start()
        with record_function(f"{STEP} {plan.step}"):
            result = self._runner.execute(plan, view)
        if self._executed == self._last:
            self.close()
        return result

    def close(self) -> None:
        self._close()


class _Profile:
    def __init__(self, path: Path):
        self._path = path
        self._profile: profile | None = None

    def start(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._profile.start()
        self._profile.add_metadata_json(CLOCKS, json.dumps({"monotonic": time.monotonic(), "unix": time.time()}))

    def close(self) -> None:
        if self._profile is None:
            return
        self._profile.stop()
        try:
            self._profile.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            print(f"octavo: the profile {self._path} cannot be written: {error}", file=sys.stderr, flush=True)
        self._profile = None
