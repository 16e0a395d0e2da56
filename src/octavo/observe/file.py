"""RecordFile: a record on its way to disk, written by a thread of its own, so that a slow disk never holds up a step."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

from octavo.errors import ConfigError

FLUSH_S = 0.25  # what is older has reached the operating system, and survives the end of this process
MOST_LINES = 100_000  # that wait to be written, some 30 MB; beyond that they are dropped and counted


class RecordFile:
    """Appends lines to a new file at ``path``; what was there is replaced. Raises ConfigError where it cannot be written.

    When the disk fails later, this is said once on stderr and nothing more is written; the engine goes on.
    """

    def __init__(self, path: str):
        if path == "-":
            raise ConfigError("record is '-': the path of a file is accepted.")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"record is {path}: it cannot be written ({error.strerror}).") from None
        self.path = path
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        writer = _Writer(path, descriptor, self._lines)
        self._writer = writer
        # Also when nobody closes the engine: at the latest when the interpreter ends.
        self._close = weakref.finalize(self, writer.close)

    def put(self, line: bytes, on_dropped: Callable[[int], bytes]) -> None:
        """Write a line, which ends in no line break, soon. on_dropped: makes the line that says how many are missing."""
        lines = self._lines
        if len(lines) >= MOST_LINES:
            self._dropped += 1
            return
        if self._dropped:
            lines.append(on_dropped(self._dropped))
            self._dropped = 0
        lines.append(line)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._close()


class _Writer:
    def __init__(self, path: str, descriptor: int, lines: deque[bytes]):
        self._path = path
        self._descriptor = descriptor
        self._lines = lines
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="octavo-record", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(FLUSH_S):
                self._write()
            self._write()
        except OSError as error:
            print(f"octavo: the record {self._path} ends here: {error.strerror}.", file=sys.stderr, flush=True)
            while not self._closing.wait(FLUSH_S):
                self._lines.clear()
        finally:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def _write(self) -> None:
        lines = self._lines
        count = len(lines)  # those that come meanwhile wait for the next time
        if not count:
            return
        data = memoryview(b"\n".join([lines.popleft() for _ in range(count)]) + b"\n")
        while data:
            data = data[os.write(self._descriptor, data) :]
