"""StepAccount: puts the record of a step together from what scheduler, KV cache and runner did for it."""

from __future__ import annotations

from octavo.kv.cache import KVCache
from octavo.kv.usage import Usage
from octavo.kv.view import KVView
from octavo.observe.clock import Clock
from octavo.observe.record import StepRecord
from octavo.runner.base import StepResult
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.scheduler import Scheduler


class StepAccount:
    """Told of each moment of a step by whoever carries it out: ``begin``, ``planned``, ``submitted``, ``done``, ``end``.

    What other parts count since start becomes what this step added. Nothing here looks at single rows or tokens.
    """

    def __init__(self, scheduler: Scheduler, kv: KVCache, clock: Clock):
        self._scheduler = scheduler
        self._kv = kv
        self._now = clock.now
        kv.work.now = clock.now
        self._last_end = self._now()
        self._woken = 0.0
        self._preemptions = self._recomputed = self._queries = self._hits = self._rounding = self._reusable = 0
        self._start = self._planned = self._submitted = self._done = 0.0
        self._kv_before = self._kv_planned = 0.0
        self._running = self._waiting = self._moved = self._table_bytes = 0
        self._usage: Usage

    def woken(self) -> None:
        """A request comes while there is none."""
        self._woken = self._now()

    def begin(self) -> None:
        """Planning begins."""
        self._kv_before = self._kv.work.total_s()  # spent between the steps
        self._start = self._now()

    def planned(self, usage: Usage) -> None:
        """The plan is made; usage: with its places reserved."""
        self._planned = self._now()
        self._kv_planned = self._kv.work.total_s()
        self._usage = usage
        self._table_bytes = self._kv.table_bytes
        self._running, self._waiting = len(self._scheduler.running), len(self._scheduler.waiting)

    def submitted(self, view: KVView) -> None:
        """The view is made, and the runner gets both."""
        self._moved = sum(move.tokens for move in view.moves) if view.moves else 0
        self._submitted = self._now()

    def done(self) -> None:
        """The runner's result is there."""
        self._done = self._now()

    def end(self, plan: StepPlan, result: StepResult) -> bytes:
        """What was sampled is committed. Returns the line of the record."""
        end = self._now()
        scheduler, work, usage, prefix = self._scheduler, self._kv.work, self._usage, self._kv.prefix_stats
        start, submitted, done = self._start, self._submitted, self._done
        gap = start - self._last_end
        idle = min(max(self._woken - self._last_end, 0.0), gap)
        tokens, decodes = scheduler.planned_tokens, scheduler.planned_decodes
        gc_s, gc_count = scheduler.recorder.garbage()
        computing = result.execute_s + result.sample_s
        step = StepRecord(
            step=plan.step,
            start=start,
            submitted=submitted,
            done=done,
            end=end,
            sequences=len(plan.rows),
            prefill_tokens=tokens - decodes,
            decode_tokens=decodes,
            running=self._running,
            waiting=self._waiting,
            schedule_s=self._planned - start - (self._kv_planned - self._kv_before),
            allocate_s=work.allocate_s,
            extend_s=work.extend_s,
            evict_s=work.evict_s,
            release_s=work.release_s,
            match_s=work.match_s,
            offer_s=work.offer_s,
            compaction_s=work.compaction_s,
            table_s=work.table_s,
            view_s=submitted - self._planned,
            launch_s=max(done - submitted - computing, 0.0),  # the runner has a clock of its own
            execute_s=result.execute_s,
            sample_s=result.sample_s,
            commit_s=end - done - (work.total_s() - self._kv_planned),
            wait_s=computing,
            idle_s=idle,
            between_s=gap - idle,
            gc_s=gc_s,
            gc_count=gc_count,
            busy_s=result.busy_s,
            launches=result.launches,
            attention_launches=result.attention_launches,
            attention_s=result.attention_s,
            kv_read_bytes=result.kv_read_bytes,
            gather_s=result.gather_s,
            gather_bytes=result.gather_bytes,
            moved_tokens=self._moved,
            compacted_tokens=work.compacted_tokens,
            grown_tokens=work.grown_tokens,
            kv_reserved=usage.reserved,
            kv_used=usage.used + tokens,
            kv_wasted_inside=usage.wasted_inside - tokens,
            kv_wasted_outside=usage.wasted_outside,
            kv_shared=usage.shared,
            kv_cached=usage.cached,
            table_bytes=self._table_bytes,
            table_written_bytes=work.table_bytes,
            evicted_blocks=work.evicted_blocks,
            preemptions=scheduler.preemptions - self._preemptions,
            recomputed_tokens=scheduler.recomputed_tokens - self._recomputed,
            prefix_queries=prefix.queries - self._queries,
            prefix_hits=prefix.hits - self._hits,
            prefix_rounding=prefix.rounding - self._rounding,
            prefix_reusable=prefix.reusable - self._reusable,
        )
        work.clear()
        self._preemptions, self._recomputed = scheduler.preemptions, scheduler.recomputed_tokens
        self._queries, self._hits, self._rounding = prefix.queries, prefix.hits, prefix.rounding
        self._reusable = prefix.reusable
        self._last_end = end
        return scheduler.recorder.step(step)
