"""Baseline: a folder that keeps one result document for each suite, to compare later ones with."""

from __future__ import annotations

import json
import re
from pathlib import Path

from octavo.bench.compare import read_results
from octavo.bench.report import Json, document
from octavo.errors import ConfigError


class Baseline:
    """Reads and keeps documents in a folder, which is made when something is kept. A document is never written over."""

    def __init__(self, folder: str | Path):
        """Raises ConfigError where there is something that is no folder."""
        self._folder = Path(folder)
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"baseline is {folder}: that is no folder.")

    def path(self, suite: str) -> Path:
        """Where a suite's results are."""
        return self._folder / (re.sub(r"[^\w.-]+", "_", suite) + ".json")

    def results(self, suite: str) -> list[Json]:
        """What is kept of a suite; empty where nothing is. Raises ConfigError for a file that cannot be read."""
        path = self.path(suite)
        return read_results(path) if path.exists() else []

    def keep(self, suite: str, command: str, results: list[Json]) -> None:
        """Keep these. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.path(suite).open("x", encoding="utf-8") as file:
            json.dump(document(command, results), file)
