"""A profile of torch's profiler beside a record: where it lies, and how its times become the record's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import RecordError
from octavo.observe.chrome import Event, Scale
from octavo.observe.read import Record

CLOCKS = "octavo_clocks"  # metadata: one moment on both clocks, {"monotonic": seconds, "unix": seconds}
STEP = "octavo step"  # the annotation around a step, with its number behind it


def profile_path(record: str | Path) -> Path:
    """The profile beside a record: ``run.jsonl`` has ``run.profile.json``."""
    return Path(record).with_suffix(".profile.json")


def profile_events(path: Path, record: Record, scale: Scale) -> list[Event]:
    """The profile's events, on the time line of the record's.

    Raises RecordError where it cannot be read, or is not of this record's run.
    """
    try:
        found: Any = msgspec.json.decode(path.read_bytes())
        clocks = found[CLOCKS]
        base = int(found["baseTimeNanoseconds"])  # since 1970; ts counts microseconds from it
        ahead = round((clocks["unix"] - clocks["monotonic"] + scale.origin) * 1e9)
        events = [_shifted(event, base - ahead) for event in found["traceEvents"]]
        began = float(clocks["monotonic"])
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path} is no profile of octavo's: {type(error).__name__}: {error}.") from None
    if not record.header.monotonic <= began <= record.end:
        raise RecordError(f"{path} is of another run than the record beside it.")
    return events


def _shifted(event: Event, nanoseconds: int) -> Event:
    if "ts" not in event:
        return event
    return {**event, "ts": (round(float(event["ts"]) * 1000) + nanoseconds) / 1000}
