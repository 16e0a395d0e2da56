"""The Azure LLM inference traces of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens (CC-BY).

TIMESTAMP is a date and time: "2023-11-16 18:17:03.9799600" in 2023, "2024-05-10 00:00:00.009930+00:00" in 2024.
https://github.com/Azure/AzurePublicDataset
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bench.traces import fields, table
from octavo.bench.traces.source import Entry, TraceSource

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def recognise(head: str) -> bool:
    return table.has(head, *COLUMNS)


def read(source: TraceSource, limit: int | None) -> Iterator[Entry]:
    def entry(timestamp: str | None, context: str | None, generated: str | None) -> Entry:
        arrival = fields.date(timestamp, COLUMNS[0])
        prompt, output = fields.tokens(context, COLUMNS[1]), fields.tokens(generated, COLUMNS[2])
        return Entry(arrival, source.own(prompt), output)

    return table.read_rows(source, COLUMNS, entry)
