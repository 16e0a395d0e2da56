"""Populator: brings in pages on a thread of its own, while the step that will write them computes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MADV_POPULATE_WRITE = 23
PIECE = 1 << 20  # bytes of one call: how long ``stop`` may have to wait


class Populator:
    """planes: the addresses of the tensors, in the order in which a step writes them. memory: what they lie in, kept alive.

    A page that is not brought in yet when a kernel writes to it comes by a page fault, so nothing depends on this but time. The
    thread ends with this object; a kernel without MADV_POPULATE_WRITE (before Linux 5.14) leaves everything to faults.
    """

    def __init__(self, libc: Any, memory: object, planes: list[int]):
        self._libc = libc
        self._memory = memory
        self._planes = planes
        self._executor = ThreadPoolExecutor(1, "octavo-pages")
        self._last: Future[None] | None = None
        self._stop = threading.Event()

    def begin(self, ranges: list[tuple[int, int]]) -> None:
        """Bring in these (offset within a tensor, size), in all tensors, after what was begun before."""
        self._last = self._executor.submit(_populate, self._libc, self._memory, self._planes, ranges, self._stop)

    def stop(self) -> None:
        """On return nothing is being brought in, nor will be."""
        if self._last is not None:
            self._stop.set()
            self.wait()
            self._stop = threading.Event()

    def wait(self) -> None:
        """On return all that was begun is there."""
        if self._last is not None:
            self._last.result()
            self._last = None


def _populate(libc: Any, memory: object, planes: list[int], ranges: list[tuple[int, int]], stop: threading.Event) -> None:
    madvise = libc.madvise
    for plane in planes:  # layer by layer: the step follows close behind
        for at, size in ranges:
            for piece in range(at, at + size, PIECE):
                if stop.is_set() or madvise(plane + piece, min(PIECE, at + size - piece), MADV_POPULATE_WRITE):
                    return
