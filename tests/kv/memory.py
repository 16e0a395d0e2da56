"""A KV memory whose contents can be told apart: what a runner does to an arena, without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.kv.arena import KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.factory import build_cache
from octavo.kv.view import KVView
from octavo.scheduler.plan import StepPlan

SPEC = KVSpec(layers=1, kv_heads=1, head_dim=2, dtype="float32")  # 8 bytes for the keys of a token: one int64
NOTHING = -1
PLAN = StepPlan(0, ())


def cache(layout: str = "paged", **settings: object) -> KVCache:
    """A small cache; every setting can be given."""
    defaults = {
        "capacity": 64,
        "slots": 8,
        "max_model_len": 64,
        "block_size": 4,
        "contiguous_reserve": "max-len",
        "hybrid_threshold": 12,
        "prefix_caching": False,
    }
    return build_cache(layout, **{"spec": SPEC, **defaults, **settings})  # type: ignore[arg-type]


def contents(tokens: Sequence[int]) -> list[int]:
    """What stands for the keys and values of these tokens: each depends on all tokens up to it, as real ones do."""
    made, last = [], 0
    for token in tokens:
        last = hash((last, token)) & (2**62 - 1)
        made.append(last)
    return made


class Memory:
    """Reads and writes the cache's arena through its views, as a runner does."""

    def __init__(self, kv: KVCache):
        self.kv = kv
        self.cells: npt.NDArray[np.int64] = kv.arena.array().view(np.int64)[0, :, :, 0]  # [K|V, token]
        self.cells[:] = NOTHING

    def prepare(self) -> KVView:
        """The next step's view, with its moves carried out."""
        view = self.kv.view(PLAN)
        view.prepare()
        for move in view.moves:
            self.cells[:, move.target : move.target + move.tokens] = self.cells[:, move.source : move.source + move.tokens].copy()
        return view

    def places(self, slot: int, start: int, end: int) -> list[int]:
        """Token indices of positions start .. end - 1."""
        view = KVView(self.kv.arena, self.kv.layout.table, self.kv.layout.run)
        return view.token_indices(np.array(slot), np.arange(start, end)).tolist()

    def write(self, slot: int, start: int, tokens: Sequence[int], end: int) -> None:
        """Compute positions start .. end - 1 of the sequence ``tokens`` and tell the cache."""
        self.cells[:, self.places(slot, start, end)] = contents(tokens[:end])[start:]
        self.kv.computed(slot, end)

    def read(self, slot: int, length: int) -> list[int]:
        """The contents of the first ``length`` positions."""
        keys, values = self.cells[:, self.places(slot, 0, length)]
        assert keys.tolist() == values.tolist()
        return keys.tolist()
