"""Batch: the rows of one step as attention sees them, prepared once per step and read by every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.kv.view import KVView
from octavo.scheduler.plan import Row

Int64s = npt.NDArray[np.int64]

MAX_KEYS = 2**16  # keys, padding included, that are collected for one group of several rows
MAX_PAIRS = 2**18  # query-key pairs, padding included, of a group of several rows with several queries each


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, ordered so that rows of similar cost are neighbours: rows of one token first, then the others, each by
    falling context. All arrays are int64.

    order:     ``[rows]``: which row of the plan each row here is.
    slots, starts, lengths: ``[rows]``: as in ``Row``.
    contexts:  ``[rows]``: start + length: how many tokens of the sequence have keys and values once the step has stored its own.
    offsets:   ``[rows + 1]``: where each row's tokens begin among the tokens of the step, and their total.
    singles:   how many rows have one token.
    positions: ``[tokens]``: each token's position in its sequence.
    targets:   ``[tokens]``: where its key and value go: token indices of the arena.
    """

    view: KVView
    order: Int64s
    slots: Int64s
    starts: Int64s
    lengths: Int64s
    contexts: Int64s
    offsets: Int64s
    singles: int
    positions: Int64s
    targets: Int64s

    @classmethod
    def of(cls, rows: Sequence[Row], view: KVView) -> Batch:
        """The batch of a plan's rows."""
        table = np.array([(row.slot, row.start, row.length) for row in rows], np.int64).reshape(-1, 3)
        order = np.lexsort((-(table[:, 1] + table[:, 2]), table[:, 2] > 1))
        slots, starts, lengths = table[order].T
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        targets = view.token_indices(np.repeat(slots, lengths), positions)
        singles = int((lengths == 1).sum())
        return cls(view, order, slots, starts, lengths, starts + lengths, offsets, singles, positions, targets)

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True)
class Group:
    """Rows ``first .. last - 1`` of a batch that one dense attention computes, padded to the longest of them.

    queries: most tokens of a row.
    lows:    int64 ``[rows]``: position of the first key that any query of the row sees (above 0 only with a window).
    keys:    most keys of a row, counted from its low.
    """

    batch: Batch
    first: int
    last: int
    queries: int
    lows: Int64s
    keys: int

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.last - self.first

    @property
    def span(self) -> slice:
        """The group's tokens among the tokens of the step."""
        return slice(int(self.batch.offsets[self.first]), int(self.batch.offsets[self.last]))

    @property
    def padded(self) -> bool:
        """Whether some row has fewer tokens than ``queries``."""
        return self.rows * self.queries > int(self.batch.offsets[self.last] - self.batch.offsets[self.first])

    def run_start(self) -> int | None:
        """Where the row's keys begin in the arena if it is one row whose keys lie in one run; otherwise None."""
        slot, context = self.batch.slots[self.first], self.batch.contexts[self.first]
        if self.rows > 1 or context > self.batch.view.run[slot]:
            return None
        return int(self.batch.view.table[slot, 0] + self.lows[0])

    def key_indices(self) -> Int64s:
        """``[rows, keys]``: arena token indices. Past a row's end its last key is repeated: what a block holds behind its last
        token may be anything, even NaN, which no mask takes away again."""
        rows = slice(self.first, self.last)
        positions = np.minimum(self.lows[:, None] + np.arange(self.keys), self.batch.contexts[rows, None] - 1)
        return self.batch.view.token_indices(self.batch.slots[rows, None], positions)

    def query_indices(self) -> Int64s:
        """``[rows, queries]``: indices among the group's tokens; past a row's end its last token is repeated."""
        rows = slice(self.first, self.last)
        within = np.minimum(np.arange(self.queries), self.batch.lengths[rows, None] - 1)
        indices: Int64s = self.batch.offsets[rows, None] - self.batch.offsets[self.first] + within
        return indices

    def padded_indices(self) -> Int64s:
        """``[tokens of the group]``: where each token is among the ``rows * queries`` padded ones."""
        rows = slice(self.first, self.last)
        lengths = self.batch.lengths[rows]
        tokens = np.arange(self.span.stop - self.span.start)
        begins = self.batch.offsets[rows] - self.batch.offsets[self.first]
        indices: Int64s = tokens + np.repeat(np.arange(self.rows) * self.queries - begins, lengths)
        return indices

    def visible(self, window: int | None) -> npt.NDArray[np.bool_]:
        """bool ``[rows, queries, keys]``: which keys a query sees: those at or before it and within the window. A padded query
        sees what the row's last one sees, so that every query sees at least one key."""
        rows = slice(self.first, self.last)
        last = self.batch.contexts[rows, None] - 1
        query = np.minimum(self.batch.starts[rows, None] + np.arange(self.queries), last)[:, :, None]
        key = (self.lows[:, None] + np.arange(self.keys))[:, None, :]
        seen: npt.NDArray[np.bool_] = key <= query
        if window is not None:
            seen &= key > query - window
        return seen


def first_keys(batch: Batch, window: int | None) -> Int64s:
    """``[rows]``: the position of the first key that any query of the row sees."""
    if window is None:
        return np.zeros(len(batch.slots), np.int64)
    return np.maximum(batch.starts - window + 1, 0)


def group_rows(batch: Batch, window: int | None, padding: float) -> Iterator[Group]:
    """Cut the batch's rows into groups of neighbours, none larger than ``MAX_KEYS`` and ``MAX_PAIRS`` allow.

    padding: how many times as many queries, or keys, as a row has may be computed for it. Rows of up to 32 count as 32.

    Rows of one token are never in a group with others.
    """
    lows = first_keys(batch, window)
    keys = batch.contexts - lows
    first = 0
    while first < len(keys):
        end = batch.singles if first < batch.singles else len(keys)
        most = least = int(keys[first])
        longest = shortest = int(batch.lengths[first])
        last = first + 1
        while last < end:
            most_here, least_here = max(most, int(keys[last])), min(least, int(keys[last]))
            longest_here, shortest_here = max(longest, int(batch.lengths[last])), min(shortest, int(batch.lengths[last]))
            if most_here > padding * max(least_here, 32) or longest_here > padding * max(shortest_here, 32):
                break
            rows = last + 1 - first
            if rows * most_here > MAX_KEYS or (longest_here > 1 and rows * most_here * longest_here > MAX_PAIRS):
                break
            most, least, longest, shortest = most_here, least_here, longest_here, shortest_here
            last += 1
        yield Group(batch, first, last, longest, lows[first:last], most)
        first = last


def single_rows(batch: Batch, window: int | None) -> Iterator[Group]:
    """A group for each row."""
    lows = first_keys(batch, window)
    for row in range(len(lows)):
        low, length = lows[row : row + 1], int(batch.lengths[row])
        yield Group(batch, row, row + 1, length, low, int(batch.contexts[row] - low[0]))
