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
from octavo.scheduler.scheduler import Scheduler


class PlannedStep(msgspec.Struct):
    """What is known of a step once it is planned and its view is made. Times as in ``StepRecord``.

    ready:  the view is made. hidden_s: of planning and view, what fell while another step computed.
    work:   of the KV cache since the last step was accounted for.
    """

    start: float
    ready: float
    schedule_s: float
    view_s: float
    idle_s: float
    between_s: float
    work: KVWork
    usage: Usage
    table_bytes: int
    running: int
    waiting: int
    moved_tokens: int
    tokens: int
    decodes: int
    preemptions: int
    recomputed: int
    queries: int
    hits: int
    rounding: int
    reusable: int
    hidden_s: float = 0.0

    def beside(self, other: Flight) -> None:
        """Another step, which is computed now, was under way while this one was planned."""
        self.hidden_s = max(0.0, min(self.ready, other.done) - max(self.start, other.began))


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

    def prepared(self, view: KVView) -> PlannedStep:
        """The view is made; the runner can have both."""
        scheduler, prefix, start = self._scheduler, self._kv.prefix_stats, self._start
        gap = start - self._last
        idle = min(max(self._woken - self._last, 0.0), gap)
        ready = self._now()
        step = PlannedStep(
            start=start,
            ready=ready,
            # Where units are small the KV cache's work is measured by samples, which may come to more than there was.
            schedule_s=max(self._planned - start - (self._kv_planned - self._kv_before), 0.0),
            view_s=ready - self._planned,
            idle_s=idle,
            between_s=gap - idle,
            work=self._kv.work.take(),
            usage=self._usage,
            table_bytes=self._table_bytes,
            running=self._running,
            waiting=self._waiting,
            moved_tokens=sum(move.tokens for move in view.moves) if view.moves else 0,
            tokens=scheduler.planned_tokens,
            decodes=scheduler.planned_decodes,
            preemptions=scheduler.preemptions - self._preemptions,
            recomputed=scheduler.recomputed_tokens - self._recomputed,
            queries=prefix.queries - self._queries,
            hits=prefix.hits - self._hits,
            rounding=prefix.rounding - self._rounding,
            reusable=prefix.reusable - self._reusable,
        )
        self._preemptions, self._recomputed = scheduler.preemptions, scheduler.recomputed_tokens
        self._queries, self._hits, self._rounding = prefix.queries, prefix.hits, prefix.rounding
        self._reusable = prefix.reusable
        self._last, self._woken = ready, 0.0
        return step

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
        before, work, usage = planned.work, self._kv.work, planned.usage
        result = flight.landed()
        computing = result.execute_s + result.sample_s
        submitted = planned.ready if direct else flight.began
        done = self._returned if direct else flight.done
        commit_s = max(end - self._returned - work.total_s(), 0.0)
        gc_s, gc_count = self._scheduler.recorder.garbage()
        step = StepRecord(
            step=flight.plan.step,
            start=planned.start,
            submitted=submitted,
            done=done,
            end=end,
            sequences=len(flight.plan.rows),
            prefill_tokens=planned.tokens - planned.decodes,
            decode_tokens=planned.decodes,
            running=planned.running,
            waiting=planned.waiting,
            schedule_s=planned.schedule_s,
            allocate_s=before.allocate_s + work.allocate_s,
            extend_s=before.extend_s + work.extend_s,
            evict_s=before.evict_s + work.evict_s,
            release_s=before.release_s + work.release_s,
            match_s=before.match_s + work.match_s,
            offer_s=before.offer_s + work.offer_s,
            compaction_s=before.compaction_s + work.compaction_s,
            table_s=before.table_s + work.table_s,
            swap_s=before.swap_s + work.swap_s,
            swapped_out_tokens=before.swapped_out_tokens + work.swapped_out_tokens,
            swapped_in_tokens=before.swapped_in_tokens + work.swapped_in_tokens,
            view_s=planned.view_s,
            launch_s=max(done - submitted - computing, 0.0),  # the runner has a clock of its own
            execute_s=result.execute_s,
            sample_s=result.sample_s,
            commit_s=commit_s,
            wait_s=computing if direct else self._returned - self._waited,
            idle_s=planned.idle_s,
            between_s=planned.between_s,
            gc_s=gc_s,
            gc_count=gc_count,
            busy_s=result.busy_s,
            launches=result.launches,
            attention_launches=result.attention_launches,
            attention_s=result.attention_s,
            kv_read_bytes=result.kv_read_bytes,
            gather_s=result.gather_s,
            gather_bytes=result.gather_bytes,
            moved_tokens=planned.moved_tokens,
            compacted_tokens=before.compacted_tokens + work.compacted_tokens,
            grown_tokens=before.grown_tokens + work.grown_tokens,
            fault_pages=before.fault_pages + work.fault_pages,
            kv_reserved=usage.reserved,
            kv_used=usage.used + planned.tokens,
            kv_wasted_inside=usage.wasted_inside - planned.tokens,
            kv_wasted_outside=usage.wasted_outside,
            kv_shared=usage.shared,
            kv_cached=usage.cached,
            table_bytes=planned.table_bytes,
            table_written_bytes=before.table_bytes + work.table_bytes,
            evicted_blocks=before.evicted_blocks + work.evicted_blocks,
            preemptions=planned.preemptions,
            recomputed_tokens=planned.recomputed,
            prefix_queries=planned.queries,
            prefix_hits=planned.hits,
            prefix_rounding=planned.rounding,
            prefix_reusable=planned.reusable,
            queued_s=0.0 if direct else max(0.0, submitted - planned.ready),
            handover_s=max(0.0, self._returned - done),
            hidden_s=planned.hidden_s + (commit_s if next_began else 0.0),
        )
        work.clear()
        self._last = end
        return self._scheduler.recorder.step(step)
