"""Export of a record in Chrome's trace format (JSON), which Perfetto and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Events are written track by track,
and within a track in order of time; times are microseconds from the first moment that is shown, with three decimals.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from octavo.observe.read import Record, RequestLife
from octavo.observe.record import StepRecord

Event = dict[str, Any]

ENGINE, REQUESTS = 2**22 + 1, 2**22 + 2  # process ids: above the largest that Linux gives out, which a profile may have
SCHEDULER, KV_MANAGER, DEVICE, SAMPLER, GARBAGE = 1, 2, 3, 4, 5
TRACKS = {
    SCHEDULER: "scheduler (engine thread)",
    KV_MANAGER: "KV manager (engine thread)",
    DEVICE: "device workers",
    SAMPLER: "sampler",
    GARBAGE: "Python garbage collection",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """From seconds of the engine's clock to nanoseconds of the trace. Integers, so that what nests still nests when rounded."""

    origin: float

    def __call__(self, moment: float) -> int:
        return round((moment - self.origin) * 1e9)


def trace_events(record: Record, scale: Scale) -> Iterator[Event]:
    """All events of a record."""
    yield from _names(record)
    yield from _in_order(_scheduler(record, scale))
    yield from _in_order(_kv_manager(record, scale))
    yield from _device(record, scale)
    for one in record.collections:
        args = {"generation": one.generation, "collected": one.collected}
        yield _span(ENGINE, GARBAGE, f"generation {one.generation}", scale(one.moment), scale(one.moment + one.seconds), args)
    yield from _counters(record, scale)
    yield from _requests(record, scale)


def _in_order(steps: Iterable[list[Event]]) -> Iterator[Event]:
    """The events of each step in order of time, outer ones first, from lists that begin in order of time: where scheduling is
    overlapped, a step is planned before the one before it is committed."""
    waiting: list[Event] = []
    for events in steps:
        begin = min((event["ts"] for event in events), default=0.0)
        due = sum(event["ts"] < begin for event in waiting)
        yield from waiting[:due]
        waiting = sorted(waiting[due:] + events, key=lambda event: (event["ts"], -event["dur"]))
    yield from waiting


def scale_of(record: Record) -> Scale:
    """Time zero is the first moment that anything in the record has."""
    moments = [record.begin, *(one.moment for one in record.collections)]
    moments += [begin for life in record.requests.values() if (begin := _begin(life)) is not None]
    return Scale(min(moments))


def _span(pid: int, tid: int, name: str, begin: int, end: int, args: dict[str, Any] | None = None) -> Event:
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin / 1000, "dur": max(end - begin, 0) / 1000}
    return event if args is None else {**event, "args": args}


def _name(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _names(record: Record) -> Iterator[Event]:
    for place, (pid, name) in enumerate({ENGINE: f"octavo {record.header.octavo} engine", REQUESTS: "requests"}.items()):
        yield _name("process_name", pid, 0, name=name)
        yield _name("process_sort_index", pid, 0, sort_index=place)
    for tid, name in TRACKS.items():
        yield _name("thread_name", ENGINE, tid, name=name)
        yield _name("thread_sort_index", ENGINE, tid, sort_index=tid)


def _scheduler(record: Record, scale: Scale) -> Iterator[list[Event]]:
    """Steps and, between them, what the thread waits for or does."""
    before: StepRecord | None = None
    overlapped = any(step.queued_s for step in record.steps)
    for step in record.steps:
        start, end = scale(step.start), scale(step.end)
        ready, submitted = scale(step.submitted - step.queued_s), scale(step.submitted)
        taken = scale(step.done + step.handover_s)
        view = max(start, ready - round(step.view_s * 1e9))
        waiting = max(submitted, taken - round(step.wait_s * 1e9))
        woken = start - round(step.between_s * 1e9)
        spans = []
        if before is not None and before.step + 1 == step.step:  # what came before the first is not of this record
            spans += [("waiting for work", woken - round(step.idle_s * 1e9), woken), ("messages", woken, start)]
        if not overlapped:  # else the parts of two steps alternate in this thread, and no span holds a whole step
            spans += [("plan", start, view), ("launch", submitted, waiting)]
        spans += [("waiting for the device", waiting, taken), ("commit", taken, end)]
        name, until = (f"plan step {step.step}", view) if overlapped else (f"step {step.step}", end)
        whole = _span(ENGINE, SCHEDULER, name, start, until, _values(step))
        yield [whole, *(_span(ENGINE, SCHEDULER, name, begin, until) for name, begin, until in spans if until > begin)]
        before = step


PLANNING = ("match_s", "allocate_s", "evict_s", "extend_s", "compaction_s", "swap_s", "table_s")
COMMITTING = ("offer_s", "release_s")


def _kv_manager(record: Record, scale: Scale) -> Iterator[list[Event]]:
    """What the KV cache did in each step: the sums of its parts, side by side where the parts were."""
    for step in record.steps:
        moments = (step.start, step.submitted - step.queued_s, step.done + step.handover_s, step.end)
        start, ready, taken, end = map(scale, moments)
        view = max(start, ready - round(step.view_s * 1e9))
        events = [_span(ENGINE, KV_MANAGER, "view", view, ready)]
        for names, at, limit in ((PLANNING, start, view), (COMMITTING, taken, end)):
            for name in names:
                until = min(at + round(getattr(step, name) * 1e9), limit)
                if until > at:
                    events.append(_span(ENGINE, KV_MANAGER, name.removesuffix("_s"), at, until, {"step": step.step}))
                at = until
        yield events


def _device(record: Record, scale: Scale) -> Iterator[Event]:
    threads = record.header.threads
    for step in record.steps:
        submitted, done = scale(step.submitted), scale(step.done)
        sampling = max(submitted, done - round(step.sample_s * 1e9))
        begin = max(submitted, sampling - round(step.execute_s * 1e9))
        args = {
            "step": step.step,
            "busy worker-seconds": step.busy_s,
            "busy share of the step": step.busy_share(threads),
            "launches": step.launches,
            "attention launches": step.attention_launches,
            "attention seconds": step.attention_s,
            "KV bytes read": step.kv_read_bytes,
            "KV bytes read per second": step.kv_read_rate,
        }
        yield _span(ENGINE, DEVICE, "execute", begin, sampling, args)
    for step in record.steps:
        submitted, done = scale(step.submitted), scale(step.done)
        sampling = max(submitted, done - round(step.sample_s * 1e9))
        if done > sampling:
            yield _span(ENGINE, SAMPLER, "sample", sampling, done, {"step": step.step})


def _counters(record: Record, scale: Scale) -> Iterator[Event]:
    token_bytes, threads = record.header.kv_token_bytes, record.header.threads
    for step in record.steps:
        values: dict[str, dict[str, float]] = {
            "KV cache, MB": {
                "used": step.kv_used * token_bytes / 1e6,
                "wasted inside": step.kv_wasted_inside * token_bytes / 1e6,
            },
            "batch, sequences": {"running": step.sequences, "waiting": step.waiting},
            "batch, tokens": {"decode": step.decode_tokens, "prefill": step.prefill_tokens},
        }
        if (share := step.busy_share(threads)) is not None:
            values["device busy, %"] = {"busy": 100 * share}
        for name, series in values.items():
            yield {"ph": "C", "pid": ENGINE, "tid": 0, "name": name, "ts": scale(step.start) / 1000, "args": series}


# ---- requests


def _requests(record: Record, scale: Scale) -> Iterator[Event]:
    """A lane holds one request at a time."""
    lives = [(begin, life) for life in record.requests.values() if (begin := _begin(life)) is not None]
    lives.sort(key=lambda one: one[0])
    busy: list[tuple[float, int]] = []  # until when a lane is taken
    free: list[int] = []
    lanes: list[list[Event]] = []
    for begin, life in lives:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        phases = _phases(life, begin, record.end)
        end = phases[-1][2]
        heapq.heappush(busy, (end, lane))
        tid = lane + 1
        lanes[lane].append(_span(REQUESTS, tid, f"request {life.id}", scale(begin), scale(end), _known(life)))
        lanes[lane] += [_span(REQUESTS, tid, name, scale(since), scale(until)) for name, since, until in phases]
    for lane, events in enumerate(lanes):
        yield _name("thread_name", REQUESTS, lane + 1, name=f"requests, lane {lane + 1}")
        yield _name("thread_sort_index", REQUESTS, lane + 1, sort_index=lane + 1)
        yield from events


def _begin(life: RequestLife) -> float | None:
    """When it was made, or the first that is known of it."""
    known = [life.queued, *(one.moment for one in life.scheduled), *(one.moment for one in life.preempted)]
    known += [life.first_token, life.finished]
    first = min((moment for moment in known if moment is not None), default=None)
    if life.arrival is None or life.arrival <= 0 or first is None:  # made by someone without the engine's clock
        return first
    return min(life.arrival, first)


def _phases(life: RequestLife, begin: float, end: float) -> list[tuple[str, float, float]]:
    """(name, begin, end) of what a request went through, without gaps. Whatever is under way lasts until the record's end."""
    changes: list[tuple[float, str]] = [(begin, "queued" if life.queued is not None else "running")]
    for admission in life.scheduled:
        again = life.first_token is not None and life.first_token <= admission.moment
        changes.append((admission.moment, "resumed" if again else "prefill"))
    changes += [(one.moment, "preempted") for one in life.preempted]
    if life.first_token is not None:
        changes.append((life.first_token, "decode"))
    changes.sort(key=lambda change: change[0])
    last = max(changes[-1][0], end if life.finished is None else life.finished)
    ends = [moment for moment, _ in changes[1:]] + [last]
    return [(name, since, until) for (since, name), until in zip(changes, ends, strict=True)]


def _known(life: RequestLife) -> dict[str, Any]:
    return {
        "prompt tokens": life.prompt_tokens,
        "max_tokens": life.max_tokens,
        "output tokens": life.output_tokens,
        "cached tokens": life.scheduled[0].cached if life.scheduled else None,
        "preemptions": len(life.preempted),
        "finish reason": life.reason,
        "text seconds": life.text_s,
    }


def _values(step: StepRecord) -> dict[str, Any]:
    """What is not zero, by name."""
    fields = ((name, getattr(step, name)) for name in StepRecord.__struct_fields__)
    return {name: value for name, value in fields if value}
