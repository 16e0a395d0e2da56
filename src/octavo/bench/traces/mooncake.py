"""Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids (Apache-2.0).

Each id stands for a block of 512 tokens and everything before it, so equal leading ids are a shared prefix.
https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.bench.traces import fields
from octavo.bench.traces.prefix_tree import PrefixTree
from octavo.bench.traces.source import DamagedError, Entry, TraceSource
from octavo.bench.workload import Segment

BLOCK = 512


def recognise(head: str) -> bool:
    return head.lstrip().startswith("{") and '"input_length"' in head and '"output_length"' in head


def read(source: TraceSource, limit: int | None) -> Iterator[Entry]:
    tree = PrefixTree(source.fresh_key)
    for number, line in source.lines():
        try:
            yield _entry(source, tree, fields.json_object(line))
        except DamagedError as error:
            source.report(number, str(error))


def _entry(source: TraceSource, tree: PrefixTree, row: dict[str, Any]) -> Entry:
    arrival = fields.seconds(row.get("timestamp"), "timestamp") / 1000
    prompt = fields.tokens(row.get("input_length"), "input_length")
    output = fields.tokens(row.get("output_length"), "output_length")
    ids = row.get("hash_ids", [])
    blocks = -(-prompt // BLOCK)
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise DamagedError(f"hash_ids is {fields.shown(ids)}: a list of integers is accepted")
    if len(ids) > blocks:
        raise DamagedError(
            f"hash_ids has {len(ids)} entries for {prompt} tokens: at most one for each {BLOCK} tokens, {blocks}, is accepted"
        )
    # A block that is not full is told from a full one with the same id: it is shared with what is as long only.
    named = [(one, min(BLOCK, prompt - i * BLOCK)) for i, one in enumerate(ids)]
    node, known = tree.find(named, prompt)
    if named[known:]:
        node = tree.grow(node, named[known:], [size for _, size in named[known:]])
    segments = tree.segments(node)
    rest = prompt - tree.depth(node)
    return Entry(arrival, (*segments, Segment(source.fresh_key(), rest)) if rest else segments, output)
