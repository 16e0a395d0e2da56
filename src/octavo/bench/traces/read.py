"""read_trace: from a file of any of the known formats to a workload."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench import context
from octavo.bench.traces import azure, burstgpt, capture, mooncake, sharegpt, vidur
from octavo.bench.traces.source import DamagedError, Entry, TraceSource
from octavo.bench.workload import BenchRequest, Workload
from octavo.errors import WorkloadError

if TYPE_CHECKING:
    from octavo.models.tokenizer import Tokenizer

MOST_REQUESTS = 1_000_000  # held at once


@dataclass(frozen=True, slots=True)
class Format:
    """recognise: whether the beginning of a file is of this format. read: its requests, in the file's order."""

    title: str
    recognise: Callable[[str], bool]
    read: Callable[[TraceSource, int | None], Iterator[Entry]]


FORMATS = {
    "azure": Format("Azure LLM inference trace (CSV)", azure.recognise, azure.read),
    "vidur": Format("vidur trace (CSV)", vidur.recognise, vidur.read),
    "burstgpt": Format("BurstGPT trace (CSV)", burstgpt.recognise, burstgpt.read),
    "mooncake": Format("Mooncake trace (JSON lines)", mooncake.recognise, mooncake.read),
    "sharegpt": Format("ShareGPT conversations (JSON)", sharegpt.recognise, sharegpt.read),
    "capture": Format("capture (JSON lines)", capture.recognise, capture.read),
}


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,
    limit: int | None = None,
    max_model_len: int | None = None,
    time_scale: float = 1.0,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
) -> Workload:
    """The requests of a trace, by arrival, the first at 0 s.

    format:        one of FORMATS; None: told from the content.
    limit:         take this many requests from the beginning; None: all, at most MOST_REQUESTS.
    max_model_len: the model's context in tokens, to which requests are cut (see ``context.cut``); None: none is cut.
    time_scale:    arrivals are multiplied by it: 0.5 replays twice as fast.
    seed:          of the prompts' contents.
    tokenizer:     gives the lengths of a trace that holds text; None: they are estimated, and a note says so.

    Rows that are damaged are left out, and counted in the notes. Raises WorkloadError where the file cannot be read, is of no
    known format, or has no row that can be used.
    """
    path = Path(path)
    _check(limit, time_scale)
    most = None if max_model_len is None else context.room(max_model_len)
    source = TraceSource(path, tokenizer)
    try:
        name = format or _detect(source)
        if name not in FORMATS:
            raise WorkloadError(f"format is {name!r}: {', '.join(FORMATS)} is accepted.")
        entries = list(islice(FORMATS[name].read(source, limit), MOST_REQUESTS + 1 if limit is None else limit))
    except OSError as error:
        raise WorkloadError(f"trace {path} cannot be read: {error.strerror or error}.") from None
    except DamagedError as error:  # a header that is wrong, or missing
        raise WorkloadError(f"trace {path} is no {FORMATS[name].title}: {error}.") from None
    if len(entries) > MOST_REQUESTS:
        raise WorkloadError(f"trace {path} has more than {MOST_REQUESTS} requests: give a limit.")
    if not entries:
        raise WorkloadError(f"trace {path} ({FORMATS[name].title}) has no request that can be used{_why(source)}.")
    return _workload(source, name, entries, most, time_scale, seed)


def _check(limit: int | None, time_scale: float) -> None:
    if limit is not None and not 1 <= limit <= MOST_REQUESTS:
        raise WorkloadError(f"limit is {limit}: a number of requests from 1 to {MOST_REQUESTS} is accepted.")
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise WorkloadError(f"time_scale is {time_scale}: a number above 0 is accepted.")


def _detect(source: TraceSource) -> str:
    head = source.head()
    for name, format in FORMATS.items():
        if format.recognise(head):
            return name
    begin = head.strip().partition("\n")[0][:80]
    known = "; ".join(f"{name}: {format.title}" for name, format in FORMATS.items())
    what = f"line 1, {begin!r}, begins none" if begin else "it is empty"
    raise WorkloadError(f"trace {source.path} is of no format that octavo reads: {what}. Accepted are {known}.")


def _why(source: TraceSource) -> str:
    if source.first:
        more = f" (and {context.counted(source.damaged - 1, 'more damaged row')})" if source.damaged > 1 else ""
        return f"; {source.first}{more}"
    return "".join(f"; {context.counted(count, 'request')} left out: {reason}" for reason, count in source.unusable.items())


def _workload(source: TraceSource, name: str, entries: list[Entry], most: int | None, time_scale: float, seed: int) -> Workload:
    timed = all(entry.arrival_s is not None for entry in entries)
    if timed:
        entries.sort(key=lambda entry: entry.arrival_s or 0.0)
    start = entries[0].arrival_s or 0.0
    requests, cut = [], 0
    for index, entry in enumerate(entries):
        segments, output = entry.segments, entry.output_tokens
        if most is not None:
            segments, output = context.cut(segments, output, most)
            cut += segments != entry.segments or output != entry.output_tokens
        arrival = max(0.0, (entry.arrival_s or 0.0) - start) * time_scale if timed else None
        requests.append(BenchRequest(index, segments, output, arrival))
    origin = f"The requests of {source.path.name}: {FORMATS[name].title}."
    return Workload(source.path.name, tuple(requests), seed, origin, _notes(source, name, cut, most, timed))


def _notes(source: TraceSource, name: str, cut: int, most: int | None, timed: bool) -> tuple[str, ...]:
    notes = []
    if source.damaged:
        rows = context.counted(source.damaged, "damaged row")
        notes.append(f"{rows} left out, the first of them in {source.first}.")
    notes += [f"{context.counted(count, 'request')} left out: {reason}." for reason, count in source.unusable.items()]
    if cut and most is not None:
        notes.append(context.cut_note(cut, most))
    if not timed:
        notes.append("The trace has no arrivals: how requests arrive is for the load generator to decide.")
    if name == "sharegpt" and source.tokenizer is None:
        notes.append("Lengths are estimated from the texts' sizes, 4 bytes a token: no tokenizer was given.")
    return (*notes, *source.notes)
