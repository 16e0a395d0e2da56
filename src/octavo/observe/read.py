"""Reading a record back, from a file or a window: ``read_record``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.errors import RecordError
from octavo.observe.record import (
    SCHEMA,
    Arrived,
    Collection,
    Dropped,
    Finished,
    FirstToken,
    Header,
    Line,
    Preempted,
    RequestEvent,
    Scheduled,
    StepRecord,
    TextTime,
)

FORMAT = "octavo record"
MOST_DAMAGE = 20  # sentences of damage that are kept; the rest is counted

_header = msgspec.json.Decoder(Header)
_line = msgspec.json.Decoder(Line)


@dataclass(slots=True)
class RequestLife:
    """What the record knows of one request. Moments are None where they are not in it.

    arrival:   when it was made. queued: when the engine took it.
    scheduled: its admissions, more than one where it was preempted; the step, slot and cached tokens of each beside it.
    preempted: when it was put out.
    reason:    why it ended. text_s: seconds of turning its tokens into text.
    """

    id: str
    arrival: float | None = None
    queued: float | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    first_token: float | None = None
    finished: float | None = None
    reason: str | None = None
    output_tokens: int | None = None
    text_s: float | None = None


@dataclass(slots=True)
class Record:
    """A record, typed.

    steps:       in order. requests: by id, in order of their first event. collections: of Python's garbage.
    damage:      sentences, empty where everything could be read. What they speak of is missing, the rest is there.
    dropped:     lines that the engine itself could not write in time.
    """

    header: Header
    steps: list[StepRecord] = field(default_factory=list)
    requests: dict[str, RequestLife] = field(default_factory=dict)
    collections: list[Collection] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    dropped: int = 0

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """A field or property of every step, float64 ``[steps]``; NaN where it is None."""
        values = [getattr(step, name) for step in self.steps]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    @property
    def begin(self) -> float:
        """The first moment that steps cover, on the engine's clock; that of the header where there is none."""
        return self.steps[0].start if self.steps else self.header.monotonic

    @property
    def end(self) -> float:
        """The last moment that steps cover."""
        return self.steps[-1].end if self.steps else self.header.monotonic

    def unix(self, moment: float) -> float:
        """A moment in seconds since 1970."""
        return moment - self.header.monotonic + self.header.unix


def read_record(source: str | Path | bytes) -> Record:
    """The record in a file, or in the bytes of one.

    A line that is cut off or garbled is reported in ``damage`` and left out. What a newer octavo writes beside what is known here
    is passed over. Raises RecordError where there is no record at all, or one of another schema.
    """
    if isinstance(source, bytes):
        return _read(source, "the record")
    try:
        data = Path(source).read_bytes()
    except OSError as error:
        raise RecordError(f"{source} cannot be read: {error.strerror}.") from None
    return _read(data, str(source))


def _read(data: bytes, name: str) -> Record:
    lines = _lines(data)
    record = Record(_read_header(next(lines, b""), name))
    damaged = 0
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        try:
            parsed = _line.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:  # ValidationError is one of the first
            if _is_unknown(line):
                continue
            damaged += 1
            if damaged <= MOST_DAMAGE:
                record.damage.append(f"line {number} of {name} cannot be read: {error}.")
        else:
            _take(record, parsed)
    if damaged > MOST_DAMAGE:
        record.damage.append(f"{damaged - MOST_DAMAGE} more lines of {name} cannot be read.")
    if data[-1:] != b"\n":
        record.damage.append(f"{name} does not end with a whole line: it was cut off, or is still being written.")
    record.steps.sort(key=lambda step: step.start)
    return record


def _lines(data: bytes) -> Iterator[bytes]:
    """Line by line, without a second copy of the whole."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        yield data[begin:end]
        begin = end + 1


def _read_header(line: bytes, name: str) -> Header:
    try:
        head = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise RecordError(f"{name} is no record of octavo: its first line is no header of one.")
    if head.get("schema") != SCHEMA:
        raise RecordError(f"{name} is a record of schema {head.get('schema')!r}: this octavo reads schema {SCHEMA}.")
    try:
        return _header.decode(line)
    except msgspec.ValidationError as error:
        raise RecordError(f"{name} has a header that cannot be read: {error}.") from None


KNOWN_TAGS = frozenset(kind.__struct_config__.tag for kind in (*RequestEvent.__args__, StepRecord, Collection, Dropped))


def _is_unknown(line: bytes) -> bool:
    """Whether it is a whole line of a kind that is not known here."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(found, list) and bool(found) and isinstance(found[0], str) and found[0] not in KNOWN_TAGS


def _take(record: Record, line: Line) -> None:
    if isinstance(line, StepRecord):
        record.steps.append(line)
    elif isinstance(line, Collection):
        record.collections.append(line)
    elif isinstance(line, Dropped):
        record.dropped += line.lines
    else:
        life = record.requests.get(line.id)
        if life is None:
            life = record.requests[line.id] = RequestLife(line.id)
        _live(life, line)


def _live(life: RequestLife, event: RequestEvent) -> None:
    match event:
        case Arrived():
            life.arrival, life.queued, life.priority = event.arrival, event.moment, event.priority
            life.prompt_tokens, life.max_tokens = event.prompt_tokens, event.max_tokens
        case Scheduled():
            life.scheduled.append(event)
        case FirstToken():
            life.first_token = event.moment
        case Preempted():
            life.preempted.append(event)
        case Finished():
            life.finished, life.reason, life.output_tokens = event.moment, event.reason, event.output_tokens
        case TextTime():
            life.text_s = event.seconds
