"""``octavo trace``: a record as a trace that Perfetto opens."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

import msgspec

from octavo.errors import RecordError
from octavo.observe.chrome import Event, scale_of, trace_events
from octavo.observe.profile import profile_events, profile_path
from octavo.observe.read import read_record

AT_ONCE = 4096  # events that are encoded together


def trace(path: str, output: str | None) -> int:
    """Write the record at ``path`` as a trace to ``output`` ("-": standard output; ".gz": compressed; None: beside it), with the
    profile that lies beside it. Says on stderr what was written and what could not be read. Returns the exit status."""
    record = read_record(path)
    scale = scale_of(record)
    target = str(Path(path).with_suffix(".trace.json")) if output is None else output
    said = list(record.damage)
    events: Iterator[Event] = trace_events(record, scale)
    profile = profile_path(path)
    if profile.exists():
        try:
            events = chain(events, profile_events(profile, record, scale))
        except RecordError as error:
            said.append(str(error))
    other = msgspec.to_builtins(msgspec.structs.replace(record.header, step_fields=()))
    with _open(target) as file:
        file.write(b'{"displayTimeUnit": "ms", "otherData": ' + msgspec.json.encode(other) + b', "traceEvents": [\n')
        first = True
        while some := list(islice(events, AT_ONCE)):
            file.write((b"" if first else b",\n") + b",\n".join(map(msgspec.json.encode, some)))
            first = False
        file.write(b"\n]}\n")
    for sentence in said:
        print(f"octavo: {sentence}", file=sys.stderr)
    what = f"{_count(len(record.steps), 'step')} and {_count(len(record.requests), 'request')}"
    print(f"octavo: {target} shows {what}: open it at https://ui.perfetto.dev", file=sys.stderr)
    return 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def _open(target: str) -> Iterator[IO[bytes]]:
    if target == "-":
        yield sys.stdout.buffer
        return
    try:
        opener = partial(gzip.open, compresslevel=5) if target.endswith(".gz") else open
        file = cast(IO[bytes], opener(target, "wb"))
    except OSError as error:
        raise RecordError(f"{target} cannot be written: {error.strerror}.") from None
    with file:
        yield file
