"""CSV traces: columns are found by name, whatever their order and whatever else there is."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence

from octavo.bench.traces.source import DamagedError, Entry, TraceSource


def columns(line: str) -> list[str]:
    """The names in a header, as they are compared: without case and outer spaces."""
    return [name.strip().casefold() for name in _split(line)]


def has(head: str, *names: str) -> bool:
    """Whether the text begins with a header that has all these columns."""
    line = head.lstrip().partition("\n")[0]
    try:
        return {name.casefold() for name in names} <= set(columns(line))
    except DamagedError:
        return False


def read_rows(
    source: TraceSource, names: Sequence[str], entry: Callable[..., Entry | None], optional: Sequence[str] = ()
) -> Iterator[Entry]:
    """``entry(*fields)`` for every row, its fields in the order of ``names`` and ``optional``; None for a field that is missing.

    An entry that is None is left out; a row for which DamagedError is raised is reported. Raises DamagedError for a header that
    lacks one of ``names``.
    """
    lines, number, line = source.first_line()
    header = columns(line)
    for name in names:
        if name.casefold() not in header:
            raise DamagedError(f"line {number} is no header with a column {name}")
    places = [header.index(name.casefold()) if name.casefold() in header else None for name in (*names, *optional)]
    for number, line in lines:
        try:
            fields = _split(line)
            found = entry(*[fields[place] if place is not None and place < len(fields) else None for place in places])
        except DamagedError as error:
            source.report(number, str(error))
        else:
            if found is not None:
                yield found


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise DamagedError(f"it is no CSV ({error})") from None
