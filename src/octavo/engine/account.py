"""StepAccount: puts the record of a step together from what scheduler, KV cache and runner did for it."""

from __future__ import annotations

import msgspec

from octavo.engine.executor import Flight
from octavo.kv.cache import KVCache
from octavo.kv.usage import Usage
from octavo.kv.view import KVView
from octavo.kv.work import KVWork
from octavo.observe.clock import Clock
from octavo.observe.record import StepRecord
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.scheduler import Scheduler


class PlannedStep(msgspec.Struct):
    """A step whose view is made, since ``ready``, with as much of its record as is known by then."""

    record: StepRecord
    ready: float

    def beside(self, other: Flight) -> None:
        """Another step, which is computed now, was under way while this one was planned."""
        self.record.hidden_s = max(0.0, min(self.ready, other.done) - max(self.record.start, other.began))


class StepAccount:
    """Told of each moment of a step by whoever carries it out: ``begin``, ``planned``, ``prepared``, then ``waits``, ``returned``
    and ``end``. Between the two groups another step's may come.

    What other parts count since start becomes what this step added. Nothing here looks at single rows or tokens.
    """

    def __init__(self, scheduler: Scheduler, kv: KVCache, clock: Clock):
        self._scheduler = scheduler
        self._kv = kv
        self._now = clock.now
        kv.work.now = clock.now
        self._last = self._now()  # until here the engine's thread is accounted for
        self._woken = 0.0
        self._preemptions = self._recomputed = self._queries = self._hits = self._rounding = self._reusable = 0
        self._start = self._planned = self._waited = self._returned = 0.0
        self._kv_before = self._kv_planned = 0.0
        self._running = self._waiting = self._table_bytes = 0
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

    def prepared(self, plan: StepPlan, view: KVView) -> PlannedStep:
        """The view is made; the runner can have both."""
        scheduler, prefix, start = self._scheduler, self._kv.prefix_stats, self._start
        gap = start - self._last
        idle = min(max(self._woken - self._last, 0.0), gap)
        ready = self._now()
        # Filled field by field: msgspec takes several times as long for as many arguments.
        step = StepRecord(step=plan.step, start=start, submitted=ready, done=ready, end=ready)
        tokens, decodes, usage = scheduler.planned_tokens, scheduler.planned_decodes, self._usage
        step.sequences, step.prefill_tokens, step.decode_tokens = len(plan.rows), tokens - decodes, decodes
        step.running, step.waiting = self._running, self._waiting
        # Where units are small the KV cache's work is measured by samples, which may come to more than there was.
        step.schedule_s = max(self._planned - start - (self._kv_planned - self._kv_before), 0.0)
        step.view_s = ready - self._planned
        step.idle_s, step.between_s = idle, gap - idle
        step.moved_tokens = sum(move.tokens for move in view.moves) if view.moves else 0
        step.kv_reserved, step.kv_used = usage.reserved, usage.used + tokens
        step.kv_wasted_inside, step.kv_wasted_outside = usage.wasted_inside - tokens, usage.wasted_outside
        step.kv_shared, step.kv_cached = usage.shared, usage.cached
        step.table_bytes = self._table_bytes
        step.preemptions = scheduler.preemptions - self._preemptions
        step.recomputed_tokens = scheduler.recomputed_tokens - self._recomputed
        step.prefix_queries, step.prefix_hits = prefix.queries - self._queries, prefix.hits - self._hits
        step.prefix_rounding, step.prefix_reusable = prefix.rounding - self._rounding, prefix.reusable - self._reusable
        _add_work(step, self._kv.work)
        self._preemptions, self._recomputed = scheduler.preemptions, scheduler.recomputed_tokens
        self._queries, self._hits, self._rounding = prefix.queries, prefix.hits, prefix.rounding
        self._reusable = prefix.reusable
        self._last, self._woken = ready, 0.0
        return PlannedStep(step, ready)

    def waits(self) -> None:
        """Nothing is left to do but to wait for a step's result."""
        self._waited = self._now()

    def returned(self) -> None:
        """The result is there."""
        self._returned = self._now()

    def end(self, planned: PlannedStep, flight: Flight, *, direct: bool, next_began: bool) -> bytes:
        """What was sampled is committed. Returns the line of the record.

        direct: the step was computed in this thread. next_began: another step computes by now.
        """
        end = self._now()
        step, work, result = planned.record, self._kv.work, flight.landed()
        computing = result.execute_s + result.sample_s
        submitted = planned.ready if direct else flight.began
        done = self._returned if direct else flight.done
        step.submitted, step.done, step.end = submitted, done, end
        step.launch_s = max(done - submitted - computing, 0.0)  # the runner has a clock of its own
        step.execute_s, step.sample_s = result.execute_s, result.sample_s
        step.commit_s = max(end - self._returned - work.total_s(), 0.0)
        step.wait_s = computing if direct else self._returned - self._waited
        step.gc_s, step.gc_count = self._scheduler.recorder.garbage()
        step.busy_s, step.launches = result.busy_s, result.launches
        step.attention_launches, step.attention_s = result.attention_launches, result.attention_s
        step.kv_read_bytes = result.kv_read_bytes
        step.gather_s, step.gather_bytes = result.gather_s, result.gather_bytes
        step.queued_s = 0.0 if direct else max(0.0, submitted - planned.ready)
        step.handover_s = max(0.0, self._returned - done)
        if next_began:
            step.hidden_s += step.commit_s
        _add_work(step, work)
        self._last = end
        return self._scheduler.recorder.step(step)


def _add_work(step: StepRecord, work: KVWork) -> None:
    """What the KV cache did since it was last asked is of this step."""
    step.allocate_s += work.allocate_s
    step.extend_s += work.extend_s
    step.evict_s += work.evict_s
    step.release_s += work.release_s
    step.match_s += work.match_s
    step.offer_s += work.offer_s
    step.compaction_s += work.compaction_s
    step.table_s += work.table_s
    step.swap_s += work.swap_s
    step.table_written_bytes += work.table_bytes
    step.evicted_blocks += work.evicted_blocks
    step.compacted_tokens += work.compacted_tokens
    step.grown_tokens += work.grown_tokens
    step.fault_pages += work.fault_pages
    step.swapped_out_tokens += work.swapped_out_tokens
    step.swapped_in_tokens += work.swapped_in_tokens
    work.clear()
