"""ShareGPT: conversations, as a JSON array or as JSON lines. Each answer becomes a request; its prompt is all that went before.

    {"id": ..., "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}

There are no arrivals. The first requests of all conversations come first, then their second ones, and so on: between two turns of
a conversation lies other traffic, as it would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.bench.traces.fields import shown
from octavo.bench.traces.json_stream import values
from octavo.bench.traces.source import DamagedError, Entry, TraceSource, estimated_tokens
from octavo.bench.workload import Segment
from octavo.errors import RequestError

ANSWERS = {"gpt", "chatgpt", "assistant", "bing", "bard", "model"}  # whom a turn may be "from", as found in such files
QUESTIONS = {"human", "user", "system"}
NO_ANSWER = "a conversation without an answer"


def recognise(head: str) -> bool:
    return head.lstrip()[:1] in ("[", "{") and '"conversations"' in head


def read(source: TraceSource, limit: int | None) -> Iterator[Entry]:
    """Requests in the order of sending. ``limit``: conversations are read until they hold this many requests."""
    rounds: list[list[Entry]] = []
    count = 0
    for line, value in values(source.path):
        try:
            entries = _requests(source, value)
        except DamagedError as error:
            source.report(line, str(error))
            continue
        if not entries:
            source.unusable[NO_ANSWER] += 1
        for turn, entry in enumerate(entries):
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(entry)
        count += len(entries)
        if limit is not None and count >= limit:
            break
    for entries in rounds:
        yield from entries


def _requests(source: TraceSource, value: Any) -> list[Entry]:
    if isinstance(value, DamagedError):
        raise value
    turns = value.get("conversations") if isinstance(value, dict) else None
    if not isinstance(turns, list):
        raise DamagedError("conversations is no list of turns")
    prompt: list[Segment] = []
    found = []
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise DamagedError(f"conversations[{i}] is no turn with a text")
        speaker, length = turn.get("from"), _length(source, turn["value"])
        if not isinstance(speaker, str) or speaker not in ANSWERS | QUESTIONS:
            raise DamagedError(f"conversations[{i}].from is {shown(speaker)}: human, gpt or system is accepted")
        if speaker in ANSWERS and prompt and length:
            found.append(Entry(None, tuple(prompt), length))
        if length:
            prompt.append(Segment(source.fresh_key(), length))
    return found


def _length(source: TraceSource, text: str) -> int:
    if source.tokenizer is None:
        return estimated_tokens(text)
    try:
        return len(source.tokenizer.encode(text, add_special_tokens=False))
    except RequestError as error:
        raise DamagedError(f"a text cannot be tokenised ({error})") from None
