"""How the C library's allocator treats the memory that a step frees."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
_KEPT = 2**30


def keep_freed_memory() -> bool:
    """Let what one step frees be there for the next. False where the C library is not glibc, and nothing changes.

    By default glibc gives large blocks back to the system at once and maps them anew for the next tensor, and the kernel clears
    each page again on its first write; that cost 15 % of a prefill's time. This holds for the whole process: it keeps up to 1 GiB
    of freed memory, in practice as much as its largest step needed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _KEPT))
