"""Pool: the library's worker threads."""

from __future__ import annotations

import weakref

import numpy as np

from octavo.native.library import Library


class Pool:
    """``threads`` workers, of which the calling thread is one, pinned to ``cpus`` where there is a CPU for each."""

    def __init__(self, library: Library, threads: int, cpus: list[int]):
        self.threads = threads
        self.pinned = threads <= len(cpus)
        places = np.array(cpus[:threads] if self.pinned else [-1] * threads, np.int32)
        self.handle = library.pool_new(places.ctypes.data, threads)
        weakref.finalize(self, library.pool_free, self.handle)
