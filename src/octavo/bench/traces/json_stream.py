"""The values of a large JSON array, or of JSON lines, one after the other and never all at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.bench.traces.source import DamagedError

PIECE = 1 << 20  # characters read at once
LARGEST = 64 << 20  # characters of one value
NEAR_END = 16  # characters: an error so near the end of what was read may come from reading no further ("tru", "\u12")
BETWEEN = re.compile(r"[\s,\[\]]*")
NEXT_OBJECT = re.compile(r"\n[ \t]*\{")


def values(path: Path) -> Iterator[tuple[int, Any]]:
    """Line (from 1) and value of each element. In place of a value that is damaged comes a DamagedError; the next one is looked
    for at the next line that begins with a brace."""
    decoder = json.JSONDecoder()
    text, at, line, more, piece = "", 0, 1, True, PIECE
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while True:
            begin = _past(BETWEEN, text, at)
            line += text.count("\n", at, begin)
            at, problem, complete = begin, "", False
            if at < len(text):
                try:
                    value, end = decoder.raw_decode(text, at)
                    complete = end < len(text) or not more or text[end - 1] == "}"  # a number may go on in the next piece
                except (ValueError, RecursionError) as error:
                    if not more or len(text) - at > LARGEST or not _may_go_on(error, len(text)):
                        problem = getattr(error, "msg", "") or "it is nested too deeply"
            if complete:
                yield line, value
                line += text.count("\n", at, end)
                at, piece = end, PIECE
            elif problem:
                yield line, DamagedError(f"it is no valid JSON ({problem})")
                found = NEXT_OBJECT.search(text, at)
                end = found.start() if found else len(text)
                line += text.count("\n", at, end)
                at, piece = end, PIECE
            elif more:
                read = file.read(piece)
                more = bool(read)
                text, at = text[at:] + read, 0
                piece *= 2  # so that a value of many pieces is not decoded once for each of them
            else:
                return


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _may_go_on(error: Exception, length: int) -> bool:
    """Whether the error may come from the end of what was read so far."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= length - NEAR_END
