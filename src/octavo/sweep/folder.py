"""Folder: the run directory. What was measured is there as soon as it was, so a sweep that was stopped goes on."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from octavo import machine
from octavo.bench.report import Json
from octavo.errors import ConfigError
from octavo.version import __version__

HEAD = "sweep.json"
SCHEMA = 1
ALIKE = ("cpu", "cpus", "memory_bytes")  # of the machine, what figures of one table must have in common


class Folder:
    """One sweep's directory, locked while this object lives. ``began``: whether there was a sweep in it before.

    asked: the settings. Raises ConfigError where the directory belongs to a sweep with other settings, in words, or to nothing of
    this kind, and where another process is at it.
    """

    def __init__(self, path: str | Path, asked: Json):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.began = (self.path / HEAD).exists()
            head = self._head(asked)
            if self.began:
                self._check(head)
            elif any(self.path.iterdir()):
                raise ConfigError(f"out is {self.path}: it has files, and none of a sweep; a new or empty directory is accepted.")
            else:
                self.put(HEAD, head)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(f"out is {self.path}: another sweep is running there; wait for it, or give another.") from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock)

    def get(self, name: str) -> Any:
        """What was put under this name; None where nothing was. Raises ConfigError for a file that is no JSON."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON ({error}): delete it, and it is measured again.") from None

    def put(self, name: str, value: Any) -> None:
        """Keep this, whole or not at all, whatever happens meanwhile."""
        self.write(name, json.dumps(value, allow_nan=False) + "\n")

    def write(self, name: str, content: str) -> None:
        """The same for a text."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def _head(self, asked: Json) -> Json:
        described = machine.describe()
        head = {
            "schema": SCHEMA,
            "format": "octavo sweep",
            "octavo": __version__,
            "machine": {name: described[name] for name in ALIKE},
            "asked": asked,
        }
        return dict(json.loads(json.dumps(head)))  # as it is when it was read back

    def _check(self, head: Json) -> None:
        there = self.get(HEAD)
        if not isinstance(there, dict) or there.get("format") != head["format"] or there.get("schema") != SCHEMA:
            raise ConfigError(f"out is {self.path}, whose {HEAD} is of no sweep that this version of octavo can go on with.")
        changes = _changes(there["asked"], head["asked"])
        changes += _changes(there["machine"], head["machine"]) + _changes({"octavo": there["octavo"]}, {"octavo": __version__})
        if changes:
            raise ConfigError(
                f"out is {self.path}, where a sweep was begun with {'; '.join(changes)}: its figures and new ones are no one "
                "table. Give what it was begun with, or another directory."
            )


def _changes(before: Json, now: Json) -> list[str]:
    """In words: "repeat=3, now 5"."""
    found = []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _changes(old, new)
        elif old != new:
            found.append(f"{name}={_words(old)}, now {_words(new)}")
    return found


def _words(value: Any) -> str:
    if value is None:
        return "its default"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
