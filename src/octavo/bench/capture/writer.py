"""CaptureWriter: the trace that a capture leaves behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.bench.capture.prefix_hash import PrefixHasher
from octavo.bench.capture.prompt import Prompt
from octavo.bench.traces.capture import MARK, VERSION
from octavo.errors import WorkloadError


class CaptureWriter:
    """A file in the capture format (docs/workloads.md), one line for each request, complete after every line.

    rows: written so far. estimated: those of them with a length not known for sure. left_out: requests without a row, by reason.
    """

    def __init__(self, path: Path):
        """Raises WorkloadError where the file exists already or cannot be made."""
        try:
            self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115
        except FileExistsError:
            raise WorkloadError(f"{path} exists already: a capture overwrites nothing; give another name.") from None
        except OSError as error:
            raise WorkloadError(f"{path} cannot be written: {error.strerror}.") from None
        self._hasher = PrefixHasher()
        self.rows = 0
        self.estimated = 0
        self.left_out: Counter[str] = Counter()
        self._write({MARK: VERSION})

    def add(
        self,
        arrival_s: float | None,
        prompts: Sequence[Prompt],
        prompt_tokens: int | None,
        output_tokens: tuple[int, bool],
        aborted: bool = False,
    ) -> None:
        """A row for each answer that the request asked for.

        prompt_tokens: of all prompts together, as the server counted them; None: it did not.
        output_tokens: of all answers together, and whether that is an estimate.
        """
        answers = sum(prompt.copies for prompt in prompts)
        size = sum(len(prompt.data) for prompt in prompts)
        output, output_estimated = output_tokens
        output = max(1, round(output / answers))
        for prompt in prompts:
            length, unsure = prompt.tokens, [] if prompt.exact else ["prompt_tokens"]
            if prompt_tokens is not None and len(prompts) == 1:
                length, unsure = max(1, prompt_tokens), []
            elif prompt_tokens is not None and not prompt.exact and size:
                length = max(1, round(prompt_tokens * len(prompt.data) / size))
            if output_estimated or answers > 1:
                unsure.append("output_tokens")
            row: dict[str, Any] = {
                "arrival_s": None if arrival_s is None else round(arrival_s, 6),
                "prompt_tokens": length,
                "output_tokens": output,
            }
            if unsure:
                row["estimated"] = unsure
            if aborted:
                row["aborted"] = True
            row |= {"prompt_bytes": len(prompt.data), "exact": prompt.exact, "hashes": self._hasher.hashes(prompt.data)}
            for _ in range(prompt.copies):
                self._write(row)
                self.rows += 1
                self.estimated += bool(unsure)

    def close(self) -> None:
        self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
