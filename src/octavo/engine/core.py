"""EngineCore: the step loop. A plain object: whoever owns it calls ``step`` while there is work."""

from __future__ import annotations

import time
from collections.abc import Iterable
from copy import copy

from octavo import machine
from octavo.engine.account import StepAccount
from octavo.engine.messages import Outputs, Ready, Stats
from octavo.errors import IntegrityError
from octavo.kv.cache import KVCache
from octavo.kv.usage import Usage
from octavo.observe.clock import Clock
from octavo.observe.record import Header, StepRecord
from octavo.observe.recorder import Recorder
from octavo.request import Request, TokenUpdate
from octavo.runner.base import Runner
from octavo.scheduler.scheduler import Scheduler
from octavo.version import __version__


class EngineCore:
    """Scheduler, KV cache and runner, put together. One step: plan, view, execute, commit.

    effective: the configuration as it really is, name to value, for people to read.
    recorder:  that of the scheduler; it takes in every step, and what becomes of each request.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        kv: KVCache,
        runner: Runner,
        clock: Clock,
        effective: dict[str, str],
    ):
        self.scheduler = scheduler
        self.kv = kv
        self.runner = runner
        self.clock = clock
        self.effective = effective
        self.recorder.begin(self.header())
        self._account = StepAccount(scheduler, kv, clock)
        self._totals = Stats(kv_token_bytes=kv.arena.spec.token_bytes)

    @property
    def recorder(self) -> Recorder:
        """Takes in what the engine does; ``window`` shows the latest of it."""
        return self.scheduler.recorder

    # ---- requests

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError where it can never be served."""
        if not self.has_work:
            self._account.woken()
        self.scheduler.add(request)

    def abort(self, ids: Iterable[str], stopped: bool = False) -> list[TokenUpdate]:
        """Drop these requests, free their memory and return their last updates; ids that are not known are passed over.

        stopped: a stop string ended them, which only their owner sees; they count as finished.
        """
        return [update for name in ids if (update := self.scheduler.abort(name, stopped)) is not None]

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return len(self.scheduler) > 0

    # ---- computing

    def step(self) -> Outputs:
        """Compute one step. Call it only while ``has_work``."""
        account = self._account
        account.begin()
        plan = self.scheduler.plan()
        usage = self.kv.usage()
        account.planned(usage)
        self._see_peak(usage, self.scheduler.planned_tokens)
        view = self.kv.view(plan)
        account.submitted(view)
        result = self.runner.execute(plan, view)
        account.done()
        updates = self.scheduler.commit(plan, result)
        line = account.end(plan, result) if self.recorder.active else b""
        self._totals.steps += 1
        return Outputs(updates, self.stats(), line)

    def _see_peak(self, usage: Usage, tokens: int) -> None:
        """``usage`` once a step is planned, which computes so many tokens: its places are reserved by then."""
        totals = self._totals
        totals.kv_peak_used = max(totals.kv_peak_used, usage.used + tokens)
        totals.kv_peak_reserved = max(totals.kv_peak_reserved, usage.reserved)
        totals.kv_peak_wasted = max(totals.kv_peak_wasted, usage.wasted_inside + usage.wasted_outside - tokens)

    # ---- looking at it

    def stats(self) -> Stats:
        """Gauges as they are now; counters since start."""
        totals, scheduler, prefix, usage = self._totals, self.scheduler, self.kv.prefix_stats, self.kv.usage()
        totals.running, totals.waiting = len(scheduler.running), len(scheduler.waiting)
        totals.kv_usage = usage.fraction
        totals.kv_used, totals.kv_reserved, totals.kv_shared = usage.used, usage.reserved, usage.shared
        totals.kv_wasted_inside, totals.kv_wasted_outside = usage.wasted_inside, usage.wasted_outside
        totals.preemptions = scheduler.preemptions
        totals.prefix_queries, totals.prefix_hits, totals.prefix_reusable = prefix.queries, prefix.hits, prefix.reusable
        totals.prompt_tokens, totals.generation_tokens = scheduler.prompt_tokens, scheduler.generation_tokens
        return copy(totals)

    def window(self, *, seconds: float | None = None, steps: int | None = None) -> bytes:
        """The last seconds, or the last steps, as a record: see ``Recorder.window``."""
        return self.recorder.window(seconds=seconds, steps=steps)

    def text_time(self, id: str, seconds: float) -> None:
        """What turning a request's tokens into text took where its text is made, for the record."""
        self.recorder.text_time(id, seconds)

    def reset_peaks(self) -> None:
        """Forget the peaks of the KV cache's use, so that what comes next has its own."""
        totals = self._totals
        totals.kv_peak_used = totals.kv_peak_reserved = totals.kv_peak_wasted = 0

    def ready(self) -> Ready:
        """What a client needs to know at the start."""
        kv = self.kv
        return Ready(self.effective, self.scheduler.max_model_len, kv.capacity, kv.block_size, self.runner.threads)

    def check(self) -> None:
        """Raise IntegrityError unless every token of the KV cache is accounted for."""
        self.kv.check()
        reserved = self.kv.usage().reserved
        if not self.has_work and reserved:
            raise IntegrityError(f"no request is left, yet {reserved} tokens of the KV cache are reserved.")

    def close(self) -> None:
        """Drop every request and complete the record."""
        self.abort(self.scheduler.ids())
        self.close_record()

    def close_record(self) -> None:
        """Write what is left of the record and of what the runner writes beside it. Nothing is added to them after this."""
        self.runner.close()
        self.recorder.close()

    def header(self) -> Header:
        """What a record of this engine begins with."""
        kv = self.kv
        return Header(
            octavo=__version__,
            machine=machine.describe(),
            config=self.effective,
            monotonic=self.clock.now(),
            unix=time.time(),
            threads=self.runner.threads,
            kv_token_bytes=kv.arena.spec.token_bytes,
            kv_capacity=kv.capacity,
            block_size=kv.block_size,
            block_tables_bytes=kv.layout.table.nbytes,
            max_model_len=self.scheduler.max_model_len,
            step_fields=StepRecord.__struct_fields__,
        )
