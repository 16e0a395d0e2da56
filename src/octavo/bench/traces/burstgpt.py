"""BurstGPT: Timestamp (seconds), Request tokens, Response tokens, and columns that are not used (CC-BY 4.0).

Requests that failed have 0 response tokens; the files with "without_fails" in their names lack them.
https://github.com/HPMLL/BurstGPT
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bench.traces import fields, table
from octavo.bench.traces.source import Entry, TraceSource

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
FAILED = "failed when the trace was taken (no response tokens)"


def recognise(head: str) -> bool:
    return table.has(head, *COLUMNS)


def read(source: TraceSource, limit: int | None) -> Iterator[Entry]:
    def entry(timestamp: str | None, request: str | None, response: str | None) -> Entry | None:
        arrival = fields.seconds(timestamp, COLUMNS[0])
        prompt, output = fields.tokens(request, COLUMNS[1], least=0), fields.tokens(response, COLUMNS[2], least=0)
        if not prompt or not output:
            source.unusable[FAILED] += 1
            return None
        return Entry(arrival, source.own(prompt), output)

    return table.read_rows(source, COLUMNS, entry)
