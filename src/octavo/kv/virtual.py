"""Layout "virtual": contiguous addresses, paged memory. A sequence is one run of addresses; pages come behind it as it grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from octavo.errors import IntegrityError
from octavo.kv.layout import Layout
from octavo.kv.pages import Pages, PageShape
from octavo.kv.regions import Region, Regions
from octavo.kv.rows import runs, span
from octavo.kv.usage import Usage
from octavo.kv.view import Move, nothing
from octavo.units import format_bytes

Segment = tuple[int, int, int]  # units [begin, end) of a slot's range, and the region that they show at the same offset


@dataclass(slots=True)
class _Slot:
    """region: what is mapped behind the shared units; where nobody shares it, it stays for the slot's next sequence.
    shared: handles of the units in front that are mapped from elsewhere, in order.
    need: rows of the sequence, shared ones included. last: rows that it can ever need.
    wanted: the segments of its range as they should be. mapped: as they are.
    populated: rows in front that need no page fault any more."""

    region: Region | None = None
    live: bool = False
    shared: list[int] = field(default_factory=list)
    need: int = 0
    last: int = 0
    wanted: list[Segment] = field(default_factory=list)
    mapped: list[Segment] = field(default_factory=list)
    populated: int = 0


class Virtual(Layout):
    """Every slot has a range of addresses for the longest sequence; a kernel sees one run. Behind a range lies a *region* of a
    sparse file, mapped once: pages come by being written and go by being punched out, so growth is no system call, and the pages
    of the next tokens are brought in while a step computes. Memory is counted in *rows*, one page in each tensor.

    A prefix is shared by showing the units of another region in front of the sequence's own: nothing is copied and nothing
    indirect is read. A unit is the fewest tokens that fill whole pages. What is reused beyond whole units, and what a fork has
    beyond them, is copied once from a *window*, an address at which the source's pages are shown meanwhile.

    Everything here is bookkeeping. What it means for pages and mappings is collected in ``take_moves``, and done by the view's
    ``prepare``, when the step before is over: what was released while that one ran, and is still read and written by it, stays as
    it is for so long.
    """

    name = "virtual"
    shares = True
    block_size = 0  # there are no blocks

    def __init__(self, shape: PageShape, capacity: int, max_model_len: int, pages: Pages):
        super().__init__(capacity, shape.slots, 1)
        self.shape = shape
        self.unit = shape.unit  # the fewest tokens that can be shared
        self.table[:, 0] = [slot * shape.stride for slot in range(shape.slots)]
        self.run[:] = shape.stride
        self.pages = pages
        self.regions = Regions(shape.capacity, shape.units, shape.unit_rows)
        self.regions.on_evict = self._evicted
        self.room = [0] * shape.slots  # positions below this can be written as things are
        self._slots = [_Slot() for _ in range(shape.slots)]
        self._longest = min(max_model_len, shape.whole_tokens(shape.capacity))
        self._live = 0
        self._extra = 0  # segments beyond one a range
        self._dirty: dict[int, None] = {}  # slots whose mapping or need has changed
        self._copies: dict[int, tuple[int, int]] = {}  # by slot: handle of the source, tokens
        self._windows: dict[int, int] = {}  # handle -> window, of copies that are due
        self._step_rows = shape.rows(1)  # of the next token: brought in ahead
        self._views = 0
        self._due: deque[tuple[int, list[Callable[[], None]]]] = deque()  # what views have to do to pages, by number of view

    @property
    def longest(self) -> int:
        return self._longest

    def reusable(self, length: int, shared: tuple[int, ...], reused: int) -> int:
        shape, regions = self.shape, self.regions
        units, beyond = divmod(reused, shape.unit)
        segments = len(self._segments(shared[:units]))
        if segments > self._segments_left():
            self._straighten()
            if segments > (most := self._segments_left()):
                return self._segments(shared[:units])[most - 1][1] * shape.unit if most > 0 else 0
        if beyond:
            source = shared[units]
            rows = shape.rows(length) - units * shape.unit_rows
            rows += sum(map(regions.cost, shared[:units])) + regions.cost(source)
            if regions.held + rows > regions.capacity or not self._has_window(source):
                return units * shape.unit
        return reused

    def admit(self, slot: int, length: int, expected: int, limit: int, shared: tuple[int, ...] = (), reused: int = 0) -> bool:
        shape, regions = self.shape, self.regions
        units, copied = divmod(reused, shape.unit)
        handles = list(shared[:units])
        rows = shape.rows(length) - units * shape.unit_rows
        revived = sum(map(regions.cost, shared[: units + bool(copied)]))
        if regions.held + rows + revived > regions.capacity or length > self._longest:
            return False
        regions.hold(handles)
        if copied:
            self._copy(slot, shared[units], copied)
        regions.make_room(rows)
        last = shape.rows(min(max(limit, length), self._longest))
        self._begin(slot, handles, self._continued(handles), shape.rows(length), last)
        regions.trim()
        self.filled[slot] = reused
        return True

    def extend(self, slot: int, length: int) -> bool:
        if length <= self.room[slot]:
            return True
        s, regions = self._slots[slot], self.regions
        region, need = s.region, self.shape.rows(length)
        assert region is not None
        if length > self._longest or regions.held + need - s.need > regions.capacity:
            return False
        work = self.work
        begin, apart = work.now(), work.evict_s
        s.last = max(s.last, need)
        self._grow(slot, s, region, need)
        regions.trim()
        work.extend_s += work.now() - begin - (work.evict_s - apart)
        return True

    def fork(self, parent: int, child: int, length: int) -> bool:
        shape, regions, p = self.shape, self.regions, self._slots[parent]
        units, copied = divmod(length, shape.unit)
        assert p.region is not None
        first = p.region.number * shape.units
        handles = p.shared[:units] + [first + unit for unit in range(len(p.shared), units)]
        source = p.shared[units] if units < len(p.shared) else first + units
        if units == len(p.shared) and parent in self._copies:
            source = self._copies[parent][0]  # where the parent's own come from: it may be released before it has them
        need = shape.rows(length)
        pinned = regions.cost(source) if copied else 0
        if regions.held + need - units * shape.unit_rows + pinned > regions.capacity:
            return False
        if len(self._segments(tuple(handles))) > self._segments_left() or (copied and not self._has_window(source)):
            return False
        regions.hold(handles)
        if copied:
            self._copy(child, source, copied)
        self._begin(child, handles, None, need, p.last)
        self.filled[child] = length
        return True  # not trimmed: where the caller cannot extend it, nothing was given up

    def offer(self, slot: int, index: int) -> int:
        s = self._slots[slot]
        assert s.region is not None
        handle = s.shared[index] if index < len(s.shared) else s.region.number * self.shape.units + index
        self.regions.keep(handle)
        return handle

    def offered(self) -> set[int]:
        return set(self.regions.kept())

    def withdraw_all(self) -> None:
        self.regions.keep_nothing()

    def release(self, slot: int) -> None:
        s = self._slots[slot]
        if not s.live or s.region is None:
            return
        self._forget_copy(slot)
        self.regions.disown(s.region)
        self.regions.drop(reversed(s.shared))
        if s.region.used_by_others:  # the slot goes on showing it, until its next sequence comes
            self.regions.detach(s.region)
            s.region = None
        s.live, s.shared, s.need = False, [], 0
        self.room[slot] = self.filled[slot] = 0
        self._live -= 1

    def take_moves(self) -> tuple[Move, ...]:
        regions, shape = self.regions, self.shape
        regions.trim()
        self._views += 1
        if regions.changed or self._dirty or self._copies:
            self._due.append((self._views, self._changes()))
        if not self._copies:
            return ()
        moves = []
        for slot, (source, tokens) in self._copies.items():
            window = shape.slots * shape.stride + self._windows[source] * shape.unit
            moves.append(Move(window, slot * shape.stride + len(self._slots[slot].shared) * shape.unit, tokens))
        for slot in list(self._copies):
            self._forget_copy(slot)  # what is given back from now on is so at the next call
        return tuple(moves)

    def preparation(self) -> Callable[[], None]:
        return partial(self._prepare, self._views) if self._due else nothing

    @property
    def table_entries(self) -> int:
        return self._live

    def usage(self) -> Usage:
        shape, regions = self.shape, self.regions
        reserved = shape.whole_tokens(regions.held)
        references = regions.references * shape.unit
        places = shape.whole_tokens(regions.orphaned)  # shared, and written by nobody who is still here
        used = sum(self.filled) - references + places
        return Usage(
            capacity=self.capacity,
            reserved=reserved,
            used=used,
            wasted_inside=reserved - used,
            wasted_outside=self.capacity - shape.whole_tokens(regions.capacity),
            shared=references - places,
            cached=len(regions.cached) * shape.unit,
        )

    def describe(self) -> dict[str, str]:
        shape = self.shape
        row = shape.tensors * shape.page
        return {
            "kv_layout": self.name,
            "pages": f"{format_bytes(shape.page)} in each of {shape.tensors} tensors: {row} bytes, "
            f"{shape.page / shape.row_bytes:.4g} tokens, are taken at once",
            "address space": f"{format_bytes(shape.tensors * shape.tokens * shape.row_bytes)} for {shape.slots} sequences",
        }

    def check(self) -> None:
        shape = self.shape
        self.regions.check((s.shared for s in self._slots), (source for source, _ in self._copies.values()))
        resident = self.pages.resident_bytes()
        if resident is not None and resident > (most := shape.capacity * shape.page * shape.tensors):
            raise IntegrityError(
                f"{resident} bytes of keys and values are in memory, more than the {most} that there are for them."
            )
        for slot, s in enumerate(self._slots):
            end = self.filled[slot]
            if not end <= shape.whole_tokens(s.need) >= self.room[slot]:
                raise IntegrityError(
                    f"slot {slot} has {s.need} rows, but {end} tokens are in use and {self.room[slot]} can be written."
                )
            if s.live:
                assert s.region is not None
                units = len(s.shared)
                wanted = self._segments(tuple(s.shared), s.region)
                if s.region.slot != slot or not s.region.live or s.region.own != span(units * shape.unit_rows, s.need):
                    raise IntegrityError(f"slot {slot} and region {s.region.number} do not agree on who writes what.")
                if s.wanted != wanted:
                    raise IntegrityError(f"slot {slot} is to show {s.wanted}, where its sequence lies in {wanted}.")
            if s.mapped != s.wanted and slot not in self._dirty:
                raise IntegrityError(f"slot {slot} shows {s.mapped} where it is to show {s.wanted}.")
        if self._extra != (extra := sum(max(0, len(s.wanted) - 1) for s in self._slots)):
            raise IntegrityError(f"{self._extra} segments are counted beyond one a range, there are {extra}.")

    # ---- placing

    def _continued(self, handles: list[int]) -> Region | None:
        """The region that the shared units end in, where nobody needs what comes behind them: the sequence goes on there."""
        if not handles:
            return None
        region = self.regions.at(handles[-1])[0]
        behind = region.used_by_others >> len(handles) * self.shape.unit_rows
        return None if region.live or behind else region

    def _begin(self, slot: int, handles: list[int], continued: Region | None, need: int, last: int) -> None:
        """Start a sequence behind the shared units, which are held for it already."""
        s, regions = self._slots[slot], self.regions
        if continued is None:
            region = s.region or regions.take(slot, s.wanted[-1][2] if s.wanted else None)
        else:
            region = continued
            if s.region is not None:
                regions.detach(s.region)
            region.slot = slot
        s.region, s.live, s.shared = region, True, handles
        s.need, s.last = len(handles) * self.shape.unit_rows, last
        region.live = True
        self._live += 1
        self._show(slot, self._segments(tuple(handles), region))
        self._grow(slot, s, region, need)

    def _grow(self, slot: int, s: _Slot, region: Region, need: int) -> None:
        regions = self.regions
        s.need = need
        region.own = span(len(s.shared) * self.shape.unit_rows, need)
        region.ahead = 0
        regions.update(region)
        ahead = min(need + self._step_rows, s.last)
        if regions.wanted + ahead - need <= regions.capacity or regions.cached:
            region.ahead = span(need, ahead)
            regions.update(region)
        self.room[slot] = min(self.shape.whole_tokens(need), self._longest)
        self._dirty[slot] = None

    def _show(self, slot: int, segments: list[Segment]) -> None:
        s = self._slots[slot]
        self._extra += max(0, len(segments) - 1) - max(0, len(s.wanted) - 1)
        s.wanted = segments
        self._dirty[slot] = None

    def _segments(self, handles: tuple[int, ...], own: Region | None = None) -> list[Segment]:
        """The runs of units that lie together in a region: those of the handles, then the rest of the range from ``own``."""
        segments: list[Segment] = []
        for unit, handle in enumerate(handles):
            number = handle // self.shape.units
            if segments and segments[-1][2] == number:
                segments[-1] = (segments[-1][0], unit + 1, number)
            else:
                segments.append((unit, unit + 1, number))
        if own is not None and len(handles) < self.shape.units:
            begin = segments.pop()[0] if segments and segments[-1][2] == own.number else len(handles)
            segments.append((begin, self.shape.units, own.number))
        return segments

    # ---- memory areas

    def _segments_left(self) -> int:
        """Segments that a range may have in front of its own region."""
        return self.pages.areas // self.shape.tensors - self._extra

    def _straighten(self) -> None:
        """Let ranges that hold no sequence show one region each."""
        for slot, s in enumerate(self._slots):
            if not s.live and len(s.wanted) > 1:
                self._show(slot, [(0, self.shape.units, s.wanted[-1][2])])

    # ---- copies

    def _has_window(self, source: int) -> bool:
        return source in self._windows or len(self._windows) < self.shape.windows

    def _copy(self, slot: int, source: int, tokens: int) -> None:
        self.regions.pin(source)
        self._copies[slot] = (source, tokens)
        if source not in self._windows:
            self._windows[source] = min(set(range(self.shape.windows)) - set(self._windows.values()))

    def _forget_copy(self, slot: int) -> None:
        copy = self._copies.pop(slot, None)
        if copy is not None:
            self.regions.unpin(copy[0])
            if all(source != copy[0] for source, _ in self._copies.values()):
                del self._windows[copy[0]]

    # ---- pages

    def _prepare(self, view: int) -> None:
        """Carry out what is due, of views that were never used too: the one place with system calls. In the runner's thread."""
        while self._due and self._due[0][0] <= view:
            for call in self._due.popleft()[1]:
                call()

    def _changes(self) -> list[Callable[[], None]]:
        """The calls that make pages and mappings what the books say. Pages are given back before others are taken."""
        shape, pages, slots = self.shape, self.pages, self._slots
        calls: list[Callable[[], None]] = []
        for region, gone in self.regions.changes():
            for start, end in runs(gone):
                calls.append(partial(pages.punch, region.number, start * shape.page, (end - start) * shape.page))
            if region.slot >= 0:
                s = slots[region.slot]
                s.populated = min(s.populated, (gone & -gone).bit_length() - 1)
        for slot in sorted(self._dirty, key=lambda slot: len(slots[slot].wanted) - len(slots[slot].mapped)):
            self._remap(slot, slots[slot], calls)
        for source, window in self._windows.items():
            region, unit, _ = self.regions.at(source)
            size = shape.unit_rows * shape.page
            at = shape.slots * shape.range_bytes + window * size
            calls.append(partial(pages.map, at, region.number, unit * size, size))
        if calls:
            calls.insert(0, pages.quiet)
        ranges = []
        for slot in self._dirty:
            s = slots[slot]
            ahead = s.region.ahead.bit_length() if s.region is not None else 0
            end = max(s.need, ahead)
            if s.live and end > s.populated:
                self.work.fault_pages += max(0, s.need - s.populated) * shape.tensors
                at = slot * shape.range_bytes + s.populated * shape.page
                ranges.append((at, (end - s.populated) * shape.page))
                s.populated = end
        self._dirty.clear()
        if ranges:
            calls.append(partial(pages.populate, ranges))
        return calls

    def _remap(self, slot: int, s: _Slot, calls: list[Callable[[], None]]) -> None:
        size = self.shape.unit_rows * self.shape.page
        for begin, end, number in _differences(s.mapped, s.wanted):
            at = slot * self.shape.range_bytes + begin * size
            calls.append(partial(self.pages.map, at, number, begin * size, (end - begin) * size))
            s.populated = min(s.populated, begin * self.shape.unit_rows)
        s.mapped = s.wanted

    def _evicted(self, handle: int) -> None:
        work = self.work
        begin = work.now()
        self.on_evict(handle)
        work.evict_s += work.now() - begin
        work.evicted_blocks += 1


def _differences(mapped: list[Segment], wanted: list[Segment]) -> list[Segment]:
    """The parts of ``wanted`` that ``mapped`` does not show. Both are in order of address."""
    found = []
    for begin, end, number in wanted:
        at = begin
        for first, last, region in mapped:
            if region == number and last > at and first < end:
                if first > at:
                    found.append((at, first, number))
                at = min(last, end)
        if at < end:
            found.append((at, end, number))
    return found
