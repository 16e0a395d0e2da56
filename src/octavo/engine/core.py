"""EngineCore: the step loop. A plain object: whoever owns it calls ``step`` while there is work."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from octavo.engine.messages import Outputs, Ready, Stats
from octavo.errors import IntegrityError
from octavo.kv.cache import KVCache
from octavo.kv.usage import Usage
from octavo.observe.clock import Clock
from octavo.observe.record import Recorder, StepRecord
from octavo.request import Request, TokenUpdate
from octavo.runner.base import Runner
from octavo.scheduler.scheduler import Scheduler


class EngineCore:
    """Scheduler, KV cache and runner, put together. One step: plan, view, execute, commit.

    effective: the configuration as it really is, name to value, for people to read.
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
        self.recorder = Recorder()
        self._totals = Stats(kv_token_bytes=kv.arena.spec.token_bytes)

    # ---- requests

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError where it can never be served."""
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
        now = self.clock.now
        before = self.scheduler.preemptions
        start = now()
        plan = self.scheduler.plan()
        planned = now()
        self._see_peak(self.kv.usage(), plan.tokens)
        view = self.kv.view(plan)
        prepared = now()
        result = self.runner.execute(plan, view)
        executed = now()
        updates = self.scheduler.commit(plan, result)
        decode_tokens = plan.decode_tokens
        step = StepRecord(
            step=plan.step,
            start=start,
            schedule_s=planned - start + now() - executed,
            prepare_s=prepared - planned,
            execute_s=result.execute_s,
            sample_s=result.sample_s,
            launches=result.launches,
            sequences=len(plan.rows),
            prefill_tokens=plan.tokens - decode_tokens,
            decode_tokens=decode_tokens,
            preemptions=self.scheduler.preemptions - before,
            kv_fraction=(usage := self.kv.usage()).fraction,
        )
        self.recorder.record(step)
        self._count(step)
        return Outputs(updates, self._stats(usage))

    def _see_peak(self, usage: Usage, tokens: int) -> None:
        """``usage`` once a step is planned, which computes so many tokens: its places are reserved by then."""
        totals = self._totals
        totals.kv_peak_used = max(totals.kv_peak_used, usage.used + tokens)
        totals.kv_peak_reserved = max(totals.kv_peak_reserved, usage.reserved)
        totals.kv_peak_wasted = max(totals.kv_peak_wasted, usage.wasted_inside + usage.wasted_outside - tokens)

    def _count(self, step: StepRecord) -> None:
        totals = self._totals
        totals.steps += 1
        totals.step_tokens = step.prefill_tokens + step.decode_tokens
        totals.launches += step.launches
        totals.schedule_s += step.schedule_s
        totals.prepare_s += step.prepare_s
        totals.execute_s += step.execute_s
        totals.sample_s += step.sample_s

    # ---- looking at it

    def stats(self) -> Stats:
        """Gauges as they are now; counters since start."""
        return self._stats(self.kv.usage())

    def _stats(self, usage: Usage) -> Stats:
        totals, scheduler, prefix = self._totals, self.scheduler, self.kv.prefix_stats
        totals.running, totals.waiting = len(scheduler.running), len(scheduler.waiting)
        totals.kv_usage = usage.fraction
        totals.kv_used, totals.kv_reserved, totals.kv_shared = usage.used, usage.reserved, usage.shared
        totals.kv_wasted_inside, totals.kv_wasted_outside = usage.wasted_inside, usage.wasted_outside
        totals.preemptions = scheduler.preemptions
        totals.prefix_queries, totals.prefix_hits = prefix.queries, prefix.hits
        totals.prompt_tokens, totals.generation_tokens = scheduler.prompt_tokens, scheduler.generation_tokens
        return copy(totals)

    def reset_peaks(self) -> None:
        """Forget the peaks of the KV cache's use, so that what comes next has its own."""
        totals = self._totals
        totals.kv_peak_used = totals.kv_peak_reserved = totals.kv_peak_wasted = 0

    def ready(self) -> Ready:
        """What a client needs to know at the start."""
        return Ready(self.effective, self.scheduler.max_model_len, self.kv.capacity, self.kv.block_size)

    def check(self) -> None:
        """Raise IntegrityError unless every token of the KV cache is accounted for."""
        self.kv.check()
        reserved = self.kv.usage().reserved
        if not self.has_work and reserved:
            raise IntegrityError(f"no request is left, yet {reserved} tokens of the KV cache are reserved.")

    def close(self) -> None:
        """Drop every request."""
        self.abort(self.scheduler.ids())
