"""Pages: what the virtual layout asks of an operating system. Here its terms, and the one that does nothing."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass

from octavo.kv.arena import KVSpec

WINDOWS = 16  # most units that one step copies from: each window is an address range and a memory area a tensor


@dataclass(frozen=True, slots=True)
class PageShape:
    """The sizes of a virtual arena, in a spec's terms. A *tensor* is one layer's keys or values.

    unit:      the fewest tokens that fill whole pages: what prefixes are shared in. unit_rows: its pages in each tensor.
    stride:    tokens from a slot's range to the next: max_model_len, rounded up to whole units.
    units:     whole units in a range, and in a region of the file.
    row_bytes: of a token, in each tensor. page: bytes. A *row* is one page in each tensor: the smallest piece of memory.
    capacity:  rows that the KV memory has.
    """

    tensors: int
    row_bytes: int
    page: int
    unit: int
    unit_rows: int
    units: int
    slots: int
    windows: int
    capacity: int

    @classmethod
    def of(cls, spec: KVSpec, capacity: int, slots: int, max_model_len: int, page: int = mmap.PAGESIZE) -> PageShape:
        """The shape for ``capacity`` tokens and ``slots`` sequences of up to ``max_model_len``."""
        unit_bytes = math.lcm(spec.row_bytes, page)
        unit = unit_bytes // spec.row_bytes
        return cls(
            tensors=spec.layers * 2,
            row_bytes=spec.row_bytes,
            page=page,
            unit=unit,
            unit_rows=unit_bytes // page,
            units=-(-max_model_len // unit),
            slots=slots,
            windows=min(slots, WINDOWS),
            capacity=capacity * spec.row_bytes // page,
        )

    @property
    def stride(self) -> int:
        return self.units * self.unit

    @property
    def tokens(self) -> int:
        """Token indices of the whole arena: a range for every slot, then the windows."""
        return self.slots * self.stride + self.windows * self.unit

    @property
    def range_bytes(self) -> int:
        """Bytes of a slot's range, and of a region, in one tensor."""
        return self.stride * self.row_bytes

    @property
    def areas(self) -> int:
        """Memory areas that the arena needs while every range is one mapping."""
        return self.tensors * (self.slots + self.windows + 1)

    @property
    def regions(self) -> int:
        """Most regions that can be in use: one in each slot, and those in which at least one unit is shared or kept."""
        return self.slots + self.capacity // self.unit_rows + 1

    def rows(self, tokens: int) -> int:
        """Rows that so many tokens from the beginning of a sequence need."""
        return -(-tokens * self.row_bytes // self.page)

    def whole_tokens(self, rows: int) -> int:
        """Tokens that lie in so many rows with all their bytes."""
        return rows * self.page // self.row_bytes


class Pages(ABC):
    """Address ranges over regions of a file, in all tensors alike. Offsets are bytes within one tensor, whole pages.

    areas: memory areas that mappings beyond one a range and window may add.
    """

    areas: int

    @abstractmethod
    def map(self, at: int, region: int, offset: int, size: int) -> None:
        """Show ``size`` bytes of a region, from ``offset``, at the address ``at``."""

    @abstractmethod
    def punch(self, region: int, offset: int, size: int) -> None:
        """Give the pages of this part of a region back."""

    @abstractmethod
    def populate(self, ranges: list[tuple[int, int]]) -> None:
        """Begin to bring in the pages at these (address, size), in this order, while the caller goes on."""

    @abstractmethod
    def quiet(self) -> None:
        """Stop bringing in pages; on return none is under way. To be called before pages are given back or mapped elsewhere."""

    @abstractmethod
    def resident_bytes(self) -> int | None:
        """Bytes of physical memory in all regions; None where there are none."""


class NoPages(Pages):
    """Nothing behind the addresses, for virtual time and for tests of the bookkeeping."""

    def __init__(self, areas: int = 2**31):
        self.areas = areas

    def map(self, at: int, region: int, offset: int, size: int) -> None: ...

    def punch(self, region: int, offset: int, size: int) -> None: ...

    def populate(self, ranges: list[tuple[int, int]]) -> None: ...

    def quiet(self) -> None: ...

    def resident_bytes(self) -> int | None:
        return None
