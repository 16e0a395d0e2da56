"""What ``octavo capture`` writes: JSON lines of arrivals, lengths and salted prefix hashes. docs/workloads.md has the fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octavo.bench.context import counted
from octavo.bench.traces import fields
from octavo.bench.traces.prefix_tree import PrefixTree
from octavo.bench.traces.source import DamagedError, Entry, TraceSource
from octavo.bench.workload import Segment

MARK = "octavo_capture"  # names the version in a capture's first line
VERSION = 1
BLOCK = 16  # bytes that are hashed together: four token ids, or about four tokens of text
HASH_DIGITS = 8  # hexadecimal, of each block
TOKEN = 4  # bytes of a token id


@dataclass(frozen=True, slots=True)
class _Row:
    arrival_s: float | None
    prompt_tokens: int
    output_tokens: int
    size: int  # bytes behind the hashes
    exact: bool  # whether these are token ids
    hashes: tuple[str, ...]


def recognise(head: str) -> bool:
    return head.lstrip().startswith("{") and f'"{MARK}"' in head.lstrip().partition("\n")[0]


def read(source: TraceSource, limit: int | None) -> Iterator[Entry]:
    """Requests by arrival; the file has them as they ended."""
    rows = list(_rows(source))
    if all(row.arrival_s is not None for row in rows):
        rows.sort(key=lambda row: row.arrival_s or 0.0)
    tree = PrefixTree(source.fresh_key)
    inexact = 0
    for row in rows[:limit]:
        inexact += bool(row.hashes) and not row.exact
        yield Entry(row.arrival_s, _segments(source, tree, row), row.output_tokens)
    if inexact:
        source.notes.append(
            f"Of {counted(inexact, 'request')} the capture knew text only: what they share is about as long as it was."
        )


def _rows(source: TraceSource) -> Iterator[_Row]:
    lines, number, line = source.first_line()
    version = fields.json_object(line).get(MARK)
    if version != VERSION:
        raise DamagedError(f"{MARK} in line {number} is {fields.shown(version)}: version {VERSION} is accepted")
    estimated = 0
    for number, line in lines:
        try:
            value = fields.json_object(line)
            row = _row(value)
        except DamagedError as error:
            source.report(number, str(error))
            continue
        estimated += bool(value.get("estimated"))
        yield row
    if estimated:
        source.notes.append(f"Lengths of {counted(estimated, 'request')} estimated by the capture: the server had not told them.")


def _row(value: dict[str, Any]) -> _Row:
    arrival = value.get("arrival_s")
    hashes, exact = value.get("hashes", ""), value.get("exact", False)
    size = fields.tokens(value.get("prompt_bytes", 0), "prompt_bytes", least=0)
    if not isinstance(hashes, str) or len(hashes) != HASH_DIGITS * -(-size // BLOCK):
        raise DamagedError(f"hashes is {fields.shown(hashes)}: {HASH_DIGITS} digits for {BLOCK} of prompt_bytes are accepted")
    if not isinstance(exact, bool):
        raise DamagedError(f"exact is {fields.shown(exact)}: true or false is accepted")
    return _Row(
        None if arrival is None else fields.seconds(arrival, "arrival_s"),
        fields.tokens(value.get("prompt_tokens"), "prompt_tokens"),
        fields.tokens(value.get("output_tokens"), "output_tokens"),
        size,
        exact,
        tuple(hashes[at : at + HASH_DIGITS] for at in range(0, len(hashes), HASH_DIGITS)),
    )


def _segments(source: TraceSource, tree: PrefixTree, row: _Row) -> tuple[Segment, ...]:
    """The prompt. A block that was seen before has as many tokens as it had then: what is shared is as long everywhere."""
    hashes = [(row.exact, block) for block in row.hashes]
    node, known = tree.find(hashes, row.prompt_tokens)
    if hashes[known:]:
        rest = row.size - known * BLOCK
        tokens = -(-rest // TOKEN) if row.exact else row.prompt_tokens - tree.depth(node)
        # Where each block ends, in bytes and so in tokens.
        ends = [min(rest, (i + 1) * BLOCK) * tokens // rest for i in range(len(hashes) - known)]
        sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        node = tree.grow(node, hashes[known:], sizes)
    segments = tree.segments(node)
    lacking = row.prompt_tokens - tree.depth(node)  # what the server put around the text, or what no hash is known of
    return (*segments, Segment(source.fresh_key(), lacking)) if lacking > 0 else segments
