"""Traces as the simulator vidur reads them: arrived_at (seconds; may be missing), num_prefill_tokens, num_decode_tokens.

https://github.com/microsoft/vidur
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bench.traces import fields, table
from octavo.bench.traces.source import Entry, TraceSource

ARRIVAL = "arrived_at"
COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def recognise(head: str) -> bool:
    return table.has(head, *COLUMNS)


def read(source: TraceSource, limit: int | None) -> Iterator[Entry]:
    timed = table.has(source.head(), ARRIVAL)  # vidur's traces of lengths alone have no arrivals

    def entry(prefill: str | None, decode: str | None, arrived: str | None) -> Entry:
        arrival = fields.seconds(arrived, ARRIVAL) if timed else None
        prompt, output = fields.tokens(prefill, COLUMNS[0]), fields.tokens(decode, COLUMNS[1])
        return Entry(arrival, source.own(prompt), output)

    return table.read_rows(source, COLUMNS, entry, optional=[ARRIVAL])
