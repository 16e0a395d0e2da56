"""Sets of rows as bit masks: row i is bit i of an integer, so that counting and comparing whole regions is one operation each."""

from __future__ import annotations

from collections.abc import Iterator


def span(start: int, end: int) -> int:
    """The rows start .. end - 1."""
    return (1 << end) - (1 << start) if end > start else 0


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """The maximal runs ``[start, end)`` of consecutive rows, in order."""
    start = 0
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        length = (~mask & (mask + 1)).bit_length() - 1
        yield start + skipped, start + skipped + length
        mask >>= length
        start += skipped + length


def top(mask: int, count: int) -> int:
    """The highest rows of the set, ``count`` or, where it has gaps, fewer; at least one."""
    low = max(0, mask.bit_length() - count)
    return mask >> low << low
