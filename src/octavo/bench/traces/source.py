"""TraceSource: a trace's file, and an account of what in it could not be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench.workload import Segment

if TYPE_CHECKING:
    from octavo.models.tokenizer import Tokenizer

LONGEST_LINE = 16 * 2**20  # bytes
HEAD = 64 * 1024  # bytes that detection looks at
BYTES_PER_TOKEN = 4.0  # of English text, roughly; only where nothing better is known, and then said


def estimated_tokens(text: str) -> int:
    """Tokens that a text may have, from its length; 0 only where it is empty."""
    return max(1, round(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)) if text else 0


class DamagedError(ValueError):
    """A row, or something in it, that cannot be used. Its message completes "line 7: ..."."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request as a trace tells it: not cut, its arrival in the trace's own time. ``arrival_s`` None: the trace has no times."""

    arrival_s: float | None
    segments: tuple[Segment, ...]
    output_tokens: int


@dataclass(slots=True)
class TraceSource:
    """The file under ``path``, as readers see it: its lines, and where they report.

    tokenizer: for traces that hold text; None: lengths are estimated.
    damaged:   rows that could not be read; ``first`` says of the first of them where it is and what was wrong.
    unusable:  requests left out although their rows are fine, by reason.
    notes:     what else a reader of the results must know.
    """

    path: Path
    tokenizer: Tokenizer | None = None
    damaged: int = 0
    first: str = ""
    unusable: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _keys: int = 0

    def head(self) -> str:
        """The beginning of the file."""
        with open(self.path, "rb") as file:
            return file.read(HEAD).decode("utf-8-sig", "replace")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number (from 1) and text of each line that is not empty. A line that is too long to be one is reported, and skipped."""
        with open(self.path, "rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                        pass
                    self.report(number, f"it is longer than {LONGEST_LINE} bytes")
                    continue
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").strip()
                if text:
                    yield number, text

    def first_line(self) -> tuple[Iterator[tuple[int, str]], int, str]:
        """The lines after the first one, and that one's number and text. Raises DamagedError where there is none."""
        lines = self.lines()
        for number, line in lines:
            return lines, number, line
        raise DamagedError("it is empty")

    def report(self, line: int, problem: str) -> None:
        """Count a damaged row."""
        self.damaged += 1
        if not self.first:
            self.first = f"line {line}: {problem}"

    def fresh_key(self) -> int:
        """A segment key that no other segment of this trace has."""
        self._keys += 1
        return self._keys - 1

    def own(self, tokens: int) -> tuple[Segment, ...]:
        """A prompt that shares nothing."""
        return (Segment(self.fresh_key(), tokens),)
