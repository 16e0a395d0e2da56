"""Recorder: takes in what the engine does and keeps the latest of it. Components record; none of them reads."""

from __future__ import annotations

from collections import deque

import msgspec

from octavo.errors import RequestError
from octavo.observe.clock import Clock
from octavo.observe.file import RecordFile
from octavo.observe.garbage import GarbageWatch
from octavo.observe.record import (
    Arrived,
    Collection,
    Dropped,
    Finished,
    FirstToken,
    Header,
    Preempted,
    RequestEvent,
    Scheduled,
    StepRecord,
    TextTime,
)

KEPT_STEPS = 16384  # about 9 MB, and more than two minutes of steps of 10 ms
KEPT_EVENTS = 16384
LONGEST_WINDOW_S = 3600.0

_encode = msgspec.json.Encoder().encode


class Recorder:
    """Each step and event is encoded once, as the line that it has in a file; that line goes into a ring in memory and, where
    there is one, to the file. Nothing here costs time per token.

    active: whether anything is recorded; where not, callers need not put a record together.
    """

    active = True

    def __init__(self, clock: Clock, file: RecordFile | None = None):
        self._now = clock.now
        self._file = file
        self._header: Header | None = None
        self._steps: deque[tuple[float, float, bytes]] = deque(maxlen=KEPT_STEPS)  # start, end, line
        self._events: deque[tuple[float, str, bool, bytes]] = deque(maxlen=KEPT_EVENTS)  # moment, request, whether it ended, line
        self._lost_steps = self._lost_events = False  # whether a ring no longer holds its first
        self._garbage = GarbageWatch(self._now, self._collection)

    def begin(self, header: Header) -> None:
        """What every record of this engine starts with. To be called once, before anything else."""
        self._header = header
        if self._file is not None:
            self._file.put(_encode(header), self._dropped)
        self._garbage.start()

    def close(self) -> None:
        """Write what is left to the file. What is recorded after this stays in memory only."""
        self._garbage.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- what components tell

    def step(self, step: StepRecord) -> bytes:
        """A step is complete. Returns its line."""
        line = _encode(step)
        steps = self._steps
        self._lost_steps = self._lost_steps or len(steps) == KEPT_STEPS
        steps.append((step.start, step.end, line))
        if self._file is not None:
            self._file.put(line, self._dropped)
        return line

    def arrived(self, id: str, arrival: float, prompt_tokens: int, max_tokens: int | None, priority: int) -> None:
        """A request is queued."""
        self._event(Arrived(self._now(), id, arrival, prompt_tokens, max_tokens, priority))

    def scheduled(self, moment: float, id: str, step: int, slot: int, tokens: int, cached: int) -> None:
        """A request is admitted."""
        self._event(Scheduled(moment, id, step, slot, tokens, cached))

    def first_token(self, moment: float, id: str, step: int) -> None:
        """A request has its first token."""
        self._event(FirstToken(moment, id, step))

    def preempted(self, id: str, step: int, tokens: int) -> None:
        """A request is put out."""
        self._event(Preempted(self._now(), id, step, tokens))

    def finished(self, moment: float, id: str, step: int, reason: str, output_tokens: int) -> None:
        """A request has ended."""
        self._event(Finished(moment, id, step, reason, output_tokens))

    def text_time(self, id: str, seconds: float) -> None:
        """What turning a request's tokens into text took, once that is known."""
        self._event(TextTime(self._now(), id, seconds))

    def garbage(self) -> tuple[float, int]:
        """Seconds and number of Python's garbage collections since the last call."""
        return self._garbage.take()

    # ---- a look at a live engine

    def window(self, *, seconds: float | None = None, steps: int | None = None) -> bytes:
        """The last ``seconds``, or the last ``steps`` steps, as a record of its own, in the format of a file.

        It holds all steps that end in that time, and all events of requests that were there in it, earlier ones too.
        Raises RequestError unless exactly one is given and it is one that is accepted.
        """
        check_window(seconds, steps)
        asked: dict[str, float] = {"seconds": seconds} if seconds is not None else {"steps": steps or 0}
        begin = self._now() - seconds if seconds is not None else self._start_of_last(steps or 0)
        chosen = [line for _, end, line in self._steps if end > begin]
        events = list(self._events)  # a copy: a collection may strike, and be recorded, at any moment
        complete = not (
            (self._lost_steps and seconds is not None and self._steps[0][0] > begin)
            or (self._lost_events and events[0][0] > begin)
        )
        header = msgspec.structs.replace(self._required_header(), window={**asked, "complete": complete})
        return b"\n".join([_encode(header), *chosen, *_of_requests_since(begin, events), b""])

    def _start_of_last(self, steps: int) -> float:
        kept = self._steps
        return kept[-min(steps, len(kept))][0] if kept else self._now()

    def _required_header(self) -> Header:
        if self._header is None:
            raise ValueError("begin was not called.")
        return self._header

    # ---- how it gets in

    def _event(self, event: RequestEvent) -> None:
        self._keep(event.moment, event.id, isinstance(event, (Finished, TextTime)), _encode(event))

    def _collection(self, moment: float, generation: int, seconds: float, collected: int) -> None:
        self._keep(moment, "", True, _encode(Collection(moment, generation, seconds, collected)))

    def _keep(self, moment: float, id: str, ended: bool, line: bytes) -> None:
        events = self._events
        self._lost_events = self._lost_events or len(events) == KEPT_EVENTS
        events.append((moment, id, ended, line))
        if self._file is not None:
            self._file.put(line, self._dropped)

    def _dropped(self, lines: int) -> bytes:
        return _encode(Dropped(self._now(), lines))


def _of_requests_since(begin: float, events: list[tuple[float, str, bool, bytes]]) -> list[bytes]:
    """Events since then, and earlier ones of requests that had not ended by then."""
    found: list[bytes] = []
    there: dict[str, bool] = {}  # by request: told by its first event since then, or by its last one before
    for moment, id, ended, line in reversed(events):
        if moment >= begin:
            there[id] = True
        elif not id or not there.setdefault(id, not ended):
            continue
        found.append(line)
    found.reverse()
    return found


def check_window(seconds: float | None, steps: int | None) -> None:
    """Raise RequestError unless exactly one is given and it is one that a window can have."""
    if (seconds is None) == (steps is None):
        given = "neither is given" if seconds is None else "both are given"
        raise RequestError(f"A window is the last seconds or the last steps: {given}.", "seconds")
    if steps is not None and not 1 <= steps <= KEPT_STEPS:
        raise RequestError(f"steps is {steps}: an integer from 1 to {KEPT_STEPS} is accepted, the steps that are kept.", "steps")
    if seconds is not None and not 0 < seconds <= LONGEST_WINDOW_S:
        raise RequestError(f"seconds is {seconds:g}: a number above 0, up to {LONGEST_WINDOW_S:g}, is accepted.", "seconds")


class NoRecorder(Recorder):
    """Takes in nothing: for parts that run without an engine, and for measuring what recording costs."""

    active = False

    def __init__(self) -> None:
        pass

    def begin(self, header: Header) -> None:
        pass

    def close(self) -> None:
        pass

    def step(self, step: StepRecord) -> bytes:
        return b""

    def arrived(self, id: str, arrival: float, prompt_tokens: int, max_tokens: int | None, priority: int) -> None:
        pass

    def scheduled(self, moment: float, id: str, step: int, slot: int, tokens: int, cached: int) -> None:
        pass

    def first_token(self, moment: float, id: str, step: int) -> None:
        pass

    def preempted(self, id: str, step: int, tokens: int) -> None:
        pass

    def finished(self, moment: float, id: str, step: int, reason: str, output_tokens: int) -> None:
        pass

    def text_time(self, id: str, seconds: float) -> None:
        pass

    def garbage(self) -> tuple[float, int]:
        return 0.0, 0

    def window(self, *, seconds: float | None = None, steps: int | None = None) -> bytes:
        raise RequestError("Nothing is recorded here.")
