"""The fields of a trace's rows: numbers, times and JSON objects out of untrusted text. Each raises DamagedError."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from octavo.bench.traces.source import DamagedError

MOST_TOKENS = 2**31 - 1
SHOWN = 40  # characters of a bad value that a message repeats


def tokens(value: Any, name: str, least: int = 1) -> int:
    """A number of tokens; text and floats are accepted where they are whole."""
    number = _number(value)
    if number is None or not least <= number <= MOST_TOKENS or number != int(number):
        raise DamagedError(f"{name} is {shown(value)}: a whole number from {least} to {MOST_TOKENS} is accepted")
    return int(number)


def seconds(value: Any, name: str) -> float:
    """A moment as a number, in whatever unit the trace has."""
    number = _number(value)
    if number is None:
        raise DamagedError(f"{name} is {shown(value)}: a number is accepted")
    return number


def date(value: Any, name: str) -> float:
    """A date and time of day (ISO 8601; without an offset: UTC), as seconds since 1970."""
    try:
        moment = datetime.fromisoformat(value.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (AttributeError, ValueError, OverflowError):
        raise DamagedError(f"{name} is {shown(value)}: a date and time is accepted") from None


def json_object(text: str) -> dict[str, Any]:
    """The object that the text holds."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedError(f"it is no valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise DamagedError("it is no JSON object")
    return value


def shown(value: Any) -> str:
    """The value as a message may repeat it."""
    if value is None:
        return "missing"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a list within a list within ...
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
