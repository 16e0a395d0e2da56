"""EngineCore: the step loop. A plain object: whoever owns it calls ``step`` while there is work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from copy import copy

from octavo import machine
from octavo.engine.account import PlannedStep, StepAccount
from octavo.engine.executor import DirectExecutor, Executor, Flight, ThreadExecutor
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

    overlapped: the next step is planned and its view made while the runner computes one, and begins as soon as that is done; what
    the one sampled is taken in meanwhile. Tokens are the same either way.
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
        overlapped: bool = False,
    ):
        self.scheduler = scheduler
        self.kv = kv
        self.runner = runner
        self.clock = clock
        self.effective = effective
        self.overlapped = overlapped
        self.recorder.begin(self.header())
        self._account = StepAccount(scheduler, kv, clock)
        self._executor: Executor | None = None
        self._under_way: deque[tuple[PlannedStep, Flight]] = deque()
        kv.snapshots(overlapped)
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
        """Whether a request waits or runs, or a step is under way."""
        return len(self.scheduler) > 0 or bool(self._under_way)

    # ---- computing

    def step(self) -> Outputs:
        """Compute one step. Call it only while ``has_work``."""
        account, under_way = self._account, self._under_way
        if not under_way:
            self._launch()
        # Whoever found no memory needs a plan that may preempt, which is made when nothing is under way.
        if self.overlapped and not self.scheduler.starved:
            self._launch()
        planned, flight = under_way[0]
        account.waits()
        try:
            result = flight.landed()
        except BaseException:
            if flight.error is not None:  # and not an interrupt that found this thread waiting
                under_way.popleft()
                self.scheduler.lose()
            raise
        account.returned()
        under_way.popleft()
        updates = self.scheduler.commit(flight.plan, result)
        if under_way:
            under_way[0][0].beside(flight)
        line = b""
        if self.recorder.active:
            line = account.end(planned, flight, direct=not self.overlapped, next_began=bool(under_way))
        self.scheduler.preemption.observe(planned.record.prefill_tokens, planned.record.tokens, result.execute_s)
        self._totals.steps += 1
        return Outputs(updates, self.stats(), line)

    def _launch(self) -> None:
        """Plan a step and hand it over; while another is under way, only if there is anything to compute."""
        account, scheduler = self._account, self.scheduler
        account.begin()
        plan = scheduler.plan()
        usage = self.kv.usage()
        account.planned(usage)
        self._see_peak(usage, scheduler.planned_tokens)
        view = self.kv.view(plan)
        if self._under_way and not plan.rows and not view.moves:
            scheduler.drop_plan()
            return
        flight = Flight(plan, view)
        self._under_way.append((account.prepared(plan, view), flight))
        self._on_executor().submit(flight)

    def _on_executor(self) -> Executor:
        """What computes steps, on the runner that the engine has now."""
        if self._executor is None or self._executor.runner is not self.runner:
            if self._executor is not None:
                self._executor.close()
            self._executor = (ThreadExecutor if self.overlapped else DirectExecutor)(self.runner, self.clock)
        return self._executor

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
        totals.swapped_out, totals.swapped_in = self.kv.swapped_out_tokens, self.kv.swapped_in_tokens
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
        if not self.has_work and self.kv.swap is not None and self.kv.swap.free < self.kv.swap.tokens:
            raise IntegrityError(
                f"no request is left, yet {self.kv.swap.tokens - self.kv.swap.free} tokens of swap space are held."
            )
        if not self.has_work and reserved:
            raise IntegrityError(f"no request is left, yet {reserved} tokens of the KV cache are reserved.")

    def close(self) -> None:
        """Drop every request, once what is under way is done, and complete the record."""
        self.abort(self.scheduler.ids())
        self.settle()
        self.close_record()

    def settle(self) -> None:
        """Where no request is left, wait for what is still under way of those that have ended, and take back their memory."""
        while self._under_way and not self.scheduler.ids():
            self.step()

    def close_record(self) -> None:
        """Write what is left of the record and of what the runner writes beside it. Nothing is added to them after this."""
        self._on_executor().close()
        self._executor = None
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
