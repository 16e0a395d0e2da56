"""FilledCache: a KV cache whose sequences begin long, with keys and values that nobody computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kv.arena import Arena, KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.layout import Layout

PERIOD = 509  # positions until the made-up rows come again
SLOT_SHIFT = 37  # by so many rows the sequence in one slot is ahead of that in the slot before


class Contents:
    """Made-up keys and values: normal deviates. The same for a position of a slot, wherever it lies."""

    def __init__(self, spec: KVSpec):
        shape = (spec.layers, 2, PERIOD, spec.kv_heads * spec.head_dim)
        values = np.random.default_rng(0).standard_normal(shape, np.float32)
        self._rows = _encoded(values, spec.dtype).reshape(*shape[:3], spec.row_bytes)

    def write(self, arena: Arena, slot: int, places: npt.NDArray[np.int64]) -> None:
        """Write positions 0, 1, ... of a slot to these token indices."""
        rows = (np.arange(len(places)) + slot * SLOT_SHIFT) % PERIOD
        for plane, made_up in zip(arena.array(), self._rows, strict=True):
            for part in range(2):
                plane[part][places] = made_up[part][rows]


class FilledCache(KVCache):
    """Admits a sequence as if all of its prompt but the last token had been computed: decode is then all there is to do."""

    def __init__(self, layout: Layout, arena: Arena, contents: Contents):
        super().__init__(layout, arena, None)
        self._contents = contents

    def admit(self, slot: int, tokens: list[int], *, expected: int, limit: int, whole: bool = False) -> int | None:
        if super().admit(slot, tokens, expected=expected, limit=limit, whole=whole) is None:
            return None
        positions = np.arange(len(tokens) - 1)
        run = int(self.layout.run[slot])
        self._contents.write(self.arena, slot, self.layout.table[slot, positions // run] + positions % run)
        return len(positions)


def _encoded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.uint8]:
    """As bytes of an element type of ``DTYPE_BYTES``; bfloat16 cuts off."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(dtype).view(np.uint8)
