"""MappedPages: the virtual layout's memory on Linux. One address range, and one sparse file whose pages are shown in it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.pages import Pages, PageShape
from octavo.kv.populate import Populator

PROC = Path("/proc")
SHMEM_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
KEPT_BACK = 2048  # memory areas for libraries, threads and their stacks that come later

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
MAP_FIXED = 0x10
PUNCH_HOLE, KEEP_SIZE = 2, 1  # of fallocate
MADV_NOHUGEPAGE = 15
INSTEAD = "use kv_layout=paged, which needs nothing but plain memory"


class MappedArena(Arena, Pages):
    """The arena and its pages: axes ``[layer][K|V][slots * stride + windows * unit][row bytes]``.

    The range is anonymous memory that is never written, so that an address to which nothing is mapped does no harm. Over it lie
    pages of one file without a name (memfd): region r of tensor t begins at byte (t * regions + r) * range_bytes, and the file
    has pages only where one was written. A page that is given back reads as zeros.

    Raises ConfigError where this system cannot do it.
    """

    def __init__(self, spec: KVSpec, shape: PageShape):
        self.spec = spec
        self.tokens = shape.tokens
        self._shape = shape
        self._plane = shape.tokens * shape.row_bytes
        self._tensor = shape.regions * shape.range_bytes  # bytes of the file
        self._libc = libc = _libc()
        free = _free_areas()
        self.areas = free - shape.areas
        if self.areas < 0:
            each = shape.tensors
            raise ConfigError(
                f"max_num_seqs is {shape.slots}: kv_layout=virtual maps a range for each sequence in each of the {each} tensors, "
                f"{shape.areas} memory areas, and this process may have {free} more (vm.max_map_count): at most "
                f"{max(0, _most_slots(free, shape))} is accepted; raise that limit or {INSTEAD}."
            )
        try:
            self.memory = mmap.mmap(-1, shape.tensors * self._plane, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"kv_layout is virtual, but an address range of {shape.tensors * self._plane} bytes cannot be reserved "
                f"({error}): lower max_num_seqs or max_model_len, or {INSTEAD}."
            ) from None
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        try:
            self._file = _File(shape.tensors * self._tensor)
            self._small_pages = _makes_huge_pages()
            self._try(libc)
        except OSError as error:
            raise ConfigError(
                f"kv_layout is virtual, but this system has no {error.filename} ({error.strerror}): {INSTEAD}."
            ) from None
        self._populator = Populator(libc, self.memory, [self._base + t * self._plane for t in range(shape.tensors)])

    def map(self, at: int, region: int, offset: int, size: int) -> None:
        address, place = self._base + at, region * self._shape.range_bytes + offset
        mmap_, file, plane, tensor = self._libc.mmap, self._file.number, self._plane, self._tensor
        for _ in range(self._shape.tensors):
            found = mmap_(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, file, place)
            if found != address:
                raise _error("mmap")
            if self._small_pages:
                self._libc.madvise(address, size, MADV_NOHUGEPAGE)
            address += plane
            place += tensor

    def punch(self, region: int, offset: int, size: int) -> None:
        place, fallocate, file = region * self._shape.range_bytes + offset, self._libc.fallocate, self._file.number
        for _ in range(self._shape.tensors):
            if fallocate(file, PUNCH_HOLE | KEEP_SIZE, place, size):
                raise _error("fallocate")
            place += self._tensor

    def populate(self, ranges: list[tuple[int, int]]) -> None:
        self._populator.begin(ranges)

    def quiet(self) -> None:
        self._populator.stop()

    def resident_bytes(self) -> int:
        return os.fstat(self._file.number).st_blocks * 512

    def _try(self, libc: Any) -> None:
        """Map, write and give back one page, so that what is missing is missed now."""
        page = self._shape.page
        self.map(0, 0, 0, page)
        self.memory[0] = 1
        self.punch(0, 0, page)
        if self.memory[0]:
            raise OSError(errno.EOPNOTSUPP, "a page that was given back is still there", "fallocate")
        self.punch(0, 0, page)  # reading it brought it in again
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
        for tensor in range(self._shape.tensors):
            libc.mmap(self._base + tensor * self._plane, page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


class _File:
    """A file of no name in memory, sparse, closed with this object."""

    def __init__(self, size: int):
        create: Callable[..., int] | None = getattr(os, "memfd_create", None)
        if create is None:
            raise OSError(errno.ENOSYS, "not Linux", "memfd_create")
        try:
            self.number = create("octavo-kv", os.MFD_CLOEXEC)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "memfd_create") from None
        try:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            if limit != resource.RLIM_INFINITY and size > limit:
                raise OSError(errno.EFBIG, f"the file size limit is {limit} bytes", f"file of {size} bytes")
            os.ftruncate(self.number, size)
        except (OSError, OverflowError) as error:
            os.close(self.number)
            raise OSError(errno.EFBIG, str(error), f"file of {size} bytes") from None

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


def _libc() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    size, offset = ctypes.c_size_t, ctypes.c_int64
    try:
        # The names with 64 take 64-bit offsets on every platform.
        libc.mmap, libc.fallocate = libc.mmap64, libc.fallocate64
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, offset]
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, offset, offset]
        libc.madvise.argtypes = [ctypes.c_void_p, size, ctypes.c_int]
    except AttributeError as error:
        raise ConfigError(f"kv_layout is virtual, but this system has not all that it needs ({error}): {INSTEAD}.") from None
    return libc


def _error(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), call)


def _free_areas() -> int:
    """Memory areas that this process may still make for the KV cache."""
    try:
        most = int((PROC / "sys/vm/max_map_count").read_text())
        used = (PROC / "self/maps").read_bytes().count(b"\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"kv_layout is virtual, but the limit of memory areas cannot be read ({error}): {INSTEAD}.") from None
    return most - used - KEPT_BACK


def _most_slots(free: int, shape: PageShape) -> int:
    """The largest max_num_seqs with which the areas suffice."""
    pieces = free // shape.tensors - 1
    return pieces // 2 if pieces // 2 <= shape.windows else pieces - shape.windows


def _makes_huge_pages() -> bool:
    """Whether writing a byte of a file in memory may bring in a huge page: then rows could not be counted."""
    try:
        setting = SHMEM_HUGE.read_text()
    except OSError:
        return False
    return "[never]" not in setting and "[deny]" not in setting and "[advise]" not in setting
