"""Regions: which rows of the virtual layout's file have physical pages, for whom, and which may go when others need them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from octavo.errors import IntegrityError
from octavo.kv.rows import runs, span, top

LEAST_TRIMMED = 8  # rows: giving spare ones back costs a system call a tensor however many they are


@dataclass(slots=True, eq=False)
class Region:
    """A range of the file as long as the longest sequence. All sets are masks of its rows; see ``Regions`` for their meaning.

    slot: where it is mapped behind what the slot shares, or -1. live: whether that slot's sequence writes here.
    refs, pins: unit -> how many sequences have it mapped that do not write here; how many copies are due from it.
    """

    number: int
    slot: int = -1
    live: bool = False
    own: int = 0
    shared: int = 0
    pinned: int = 0
    kept: int = 0
    ahead: int = 0
    resident: int = 0
    physical: int = 0
    refs: dict[int, int] = field(default_factory=dict)
    pins: dict[int, int] = field(default_factory=dict)
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def held(self) -> int:
        """Rows that somebody needs."""
        return self.own | self.shared | self.pinned

    @property
    def wanted(self) -> int:
        """Rows that are there for a reason; the other resident ones are spare."""
        return self.own | self.shared | self.pinned | self.kept | self.ahead

    @property
    def used_by_others(self) -> int:
        """Rows that must not be written by whoever gets this region next."""
        return self.shared | self.pinned | self.kept


class Regions:
    """Books only: nothing here touches memory. ``changes`` tells what has to be given back to make the pages agree.

    Of a region's rows these are
      own       written by the sequence in its slot,
      shared    in units that other sequences have mapped,
      pinned    in units that are about to be copied from,
      kept      in units offered to others by the prefix index,
      ahead     brought in before they are needed,
      resident  counted against the memory: all of the above and spare ones, warm from an earlier use.
    Held (own, shared, pinned) rows never exceed ``capacity``; ``trim`` brings the resident ones down to it: first spare rows,
    the oldest region first, then kept units that nobody holds, the least recently used first, then rows ahead.

    A handle names a unit: region number * units + index of the unit.
    """

    def __init__(self, capacity: int, units: int, unit_rows: int):
        self.capacity = capacity
        self.units = units
        self.unit_rows = unit_rows
        self.regions: list[Region] = []
        self.free: OrderedDict[Region, None] = OrderedDict()  # in no slot and used by nobody
        self.cached: OrderedDict[int, None] = OrderedDict()  # kept units that nobody holds
        self.on_evict: Callable[[int], None] = lambda handle: None
        self.resident = self.held = self.wanted = self.orphaned = self.references = 0  # rows; references: units
        self._spare: OrderedDict[Region, None] = OrderedDict()
        self.changed: dict[Region, None] = {}  # since the pages were last made to agree

    # ---- units

    def at(self, handle: int) -> tuple[Region, int, int]:
        """The region of a handle, the unit and the unit's rows."""
        number, unit = divmod(handle, self.units)
        return self.regions[number], unit, span(unit * self.unit_rows, (unit + 1) * self.unit_rows)

    def cost(self, handle: int) -> int:
        """Rows that are held in addition once somebody holds this unit."""
        region, _, rows = self.at(handle)
        return (rows & ~region.held).bit_count()

    def hold(self, handles: Iterable[int]) -> None:
        """One more sequence has mapped each of these."""
        touched: dict[Region, None] = {}
        for handle in handles:
            region, unit, rows = self.at(handle)
            self.cached.pop(handle, None)
            region.refs[unit] = region.refs.get(unit, 0) + 1
            region.shared |= rows
            self.references += 1
            touched[region] = None
        for region in touched:
            self.update(region)

    def drop(self, handles: Iterable[int]) -> None:
        """One sequence less has mapped each of these. Cached ones will be evicted in this order."""
        touched: dict[Region, None] = {}
        for handle in handles:
            region, unit, rows = self.at(handle)
            self.references -= 1
            region.refs[unit] -= 1
            if not region.refs[unit]:
                del region.refs[unit]
                region.shared &= ~rows
                self._maybe_cached(region, handle, rows)
                touched[region] = None
        for region in touched:
            self.update(region)

    def pin(self, handle: int) -> None:
        """Keep a unit as it is until ``unpin``: a copy from it is due."""
        region, unit, rows = self.at(handle)
        self.cached.pop(handle, None)
        region.pins[unit] = region.pins.get(unit, 0) + 1
        region.pinned |= rows
        self.update(region)

    def unpin(self, handle: int) -> None:
        """One copy less is due."""
        region, unit, rows = self.at(handle)
        region.pins[unit] -= 1
        if not region.pins[unit]:
            del region.pins[unit]
            region.pinned &= ~rows
            self._maybe_cached(region, handle, rows)
            self.update(region)

    def keep(self, handle: int) -> None:
        """Offer a unit, which is held, to others; it stays when it is not held any more, until its rows are needed."""
        region, _, rows = self.at(handle)
        region.kept |= rows
        self.update(region)

    def kept(self) -> Iterator[int]:
        """Handles of all that is kept."""
        for region in self.regions:
            for start, end in runs(region.kept):
                yield from range(
                    region.number * self.units + start // self.unit_rows, region.number * self.units + end // self.unit_rows
                )

    def keep_nothing(self) -> None:
        """Stop keeping anything, without telling ``on_evict``."""
        self.cached.clear()
        for region in self.regions:
            if region.kept:
                region.kept = 0
                self.update(region)

    # ---- regions

    def take(self, slot: int, shown: int | None) -> Region:
        """A free region for the sequence that begins in ``slot``: number ``shown`` if that is free, which the slot shows already,
        else the one that became free last: its pages may still be there."""
        if shown is not None and self.regions[shown] in self.free:
            region = self.regions[shown]
            del self.free[region]
        elif self.free:
            region, _ = self.free.popitem()
        else:
            region = Region(len(self.regions))
            self.regions.append(region)
        region.slot = slot
        return region

    def detach(self, region: Region) -> None:
        """Its slot has another region from now on."""
        region.slot = -1
        self.update(region)

    def disown(self, region: Region) -> None:
        """The sequence that wrote here is gone. What is kept becomes cached, to be evicted from its end."""
        own, region.own, region.ahead, region.live = region.own, 0, 0, False
        first = region.number * self.units
        for start, end in reversed(list(runs(region.kept & own))):
            for unit in range(end // self.unit_rows - 1, start // self.unit_rows - 1, -1):
                self._maybe_cached(region, first + unit, span(unit * self.unit_rows, (unit + 1) * self.unit_rows))
        self.update(region)

    def update(self, region: Region) -> None:
        """Count a region anew, after any of its sets has changed."""
        held, wanted = region.held, region.wanted
        region.resident |= wanted
        new = (
            region.resident.bit_count(),
            held.bit_count(),
            wanted.bit_count(),
            (region.shared & ~region.own).bit_count(),
        )
        old, region.counts = region.counts, new
        self.resident += new[0] - old[0]
        self.held += new[1] - old[1]
        self.wanted += new[2] - old[2]
        self.orphaned += new[3] - old[3]
        if region.resident == wanted:
            self._spare.pop(region, None)
        else:
            self._spare.setdefault(region)
        if region.resident != region.physical:
            self.changed[region] = None
        if region.slot < 0 and not region.used_by_others:
            self.free.setdefault(region)

    def _maybe_cached(self, region: Region, handle: int, rows: int) -> None:
        if region.kept & rows and not region.held & rows:
            self.cached[handle] = None

    # ---- room

    def make_room(self, rows: int) -> None:
        """Evict cached units until so many rows are free or spare, as far as there are any. Nothing is given back yet: whoever
        takes a region next may find its pages there."""
        while self.wanted + rows > self.capacity and self.cached:
            self._evict()

    def trim(self) -> None:
        """Let rows go until no more are resident than there is memory for."""
        while (excess := self.resident - self.capacity) > 0:
            if self._spare:
                region = next(iter(self._spare))
                region.resident &= ~top(region.resident & ~region.wanted, max(excess, LEAST_TRIMMED))
                self.update(region)
            elif self.cached:
                self._evict()
            else:
                self._stop_going_ahead()

    def changes(self) -> Iterator[tuple[Region, int]]:
        """Regions whose resident rows are not those of the last time, and the rows that are to be given back."""
        for region in self.changed:
            gone, region.physical = region.physical & ~region.resident, region.resident
            if gone:
                yield region, gone
        self.changed.clear()

    def _evict(self) -> None:
        handle, _ = self.cached.popitem(last=False)
        region, _, rows = self.at(handle)
        region.kept &= ~rows
        self.on_evict(handle)
        self.update(region)

    def _stop_going_ahead(self) -> None:
        ahead = [region for region in self.regions if region.ahead]
        if not ahead:
            raise IntegrityError(f"{self.held} rows are held, {self.capacity} are there.")
        for region in ahead:
            region.ahead = 0
            self.update(region)

    def check(self, shared: Iterable[Iterable[int]], pinned: Iterable[int]) -> None:
        """Raise IntegrityError unless the books balance. shared: the handles that each sequence has mapped. pinned: those that
        copies are due from."""
        refs: dict[int, int] = {}
        pins: dict[int, int] = {}
        for handle in (handle for handles in shared for handle in handles):
            refs[handle] = refs.get(handle, 0) + 1
        for handle in pinned:
            pins[handle] = pins.get(handle, 0) + 1
        for counted, known, what in (("refs", refs, "references"), ("pins", pins, "copies due")):
            found = {
                region.number * self.units + unit: count
                for region in self.regions
                for unit, count in getattr(region, counted).items()
            }
            for handle in found.keys() | known.keys():
                if found.get(handle, 0) != known.get(handle, 0):
                    raise IntegrityError(
                        f"unit {handle} has {found.get(handle, 0)} {what}, but {known.get(handle, 0)} sequences say so."
                    )
        for region in self.regions:
            first = region.number * self.units
            for units, rows, what in ((region.refs, region.shared, "shared"), (region.pins, region.pinned, "pinned")):
                expected = 0
                for unit in units:
                    expected |= self.at(first + unit)[2]
                if rows != expected:
                    raise IntegrityError(f"the {what} rows of region {region.number} are not those of its units.")
            if region.wanted & ~region.resident:
                raise IntegrityError(f"region {region.number} has rows in use that are not counted as resident.")
            if region.resident != region.physical and region not in self.changed:
                raise IntegrityError(f"region {region.number} has changed, and its pages will not follow.")
            if (region in self.free) != (region.slot < 0 and not region.used_by_others):
                raise IntegrityError(f"region {region.number} is free and in use, or neither.")
            if region.own and not region.live:
                raise IntegrityError(f"region {region.number} has own rows, but no sequence.")
        cached = {h for h in self.kept() if not self.at(h)[0].held & self.at(h)[2]}
        if cached != set(self.cached):
            raise IntegrityError(f"units {sorted(cached ^ set(self.cached))} are kept and held by nobody, or are listed so.")
        totals = tuple(map(sum, zip(*(region.counts for region in self.regions), strict=True))) or (0, 0, 0, 0)
        actual = [sum(x) for x in zip(*map(self._count, self.regions), strict=True)] or [0, 0, 0, 0]
        if not list(totals) == actual == [self.resident, self.held, self.wanted, self.orphaned]:
            raise IntegrityError(f"the totals of rows are {totals}; by the regions themselves they are {actual}.")
        if self.references != sum(refs.values()):
            raise IntegrityError(f"{self.references} references are counted, {sum(refs.values())} are held.")
        if self.held > self.capacity:
            raise IntegrityError(f"{self.held} rows are held of {self.capacity}.")

    @staticmethod
    def _count(region: Region) -> tuple[int, int, int, int]:
        return (
            region.resident.bit_count(),
            region.held.bit_count(),
            region.wanted.bit_count(),
            (region.shared & ~region.own).bit_count(),
        )
