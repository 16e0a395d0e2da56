"""KVView: all that a kernel may know about placement, the same for every layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kv.arena import Arena

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """Copy ``tokens`` tokens, keys and values of all layers, from token index ``source`` to ``target``."""

    source: int
    target: int
    tokens: int


def nothing() -> None:
    """For views of memory that is always there."""


@dataclass(frozen=True, slots=True)
class KVView:
    """Where the keys and values of every slot are, for one step.

    Token ``t`` of the sequence in slot ``s`` lies at token index ``table[s, t // run[s]] + t % run[s]`` of the arena, in
    every layer, for K and for V. In every layout the arena's axes are ``[layer][K|V][token][kv_head][dim]``.

    arena: the memory itself.
    table: int32 ``[slots, width]``: the token index at which run ``i`` of a slot's sequence begins.
    run:   int32 ``[slots]``: tokens in a run: the block size, or a contiguous sequence's whole capacity.
    prepare: to be called before the step, and before its moves, once the step before it is done: makes what the view shows true
           where addresses and memory are two things (virtual). Whoever hands the view to a runner calls it.
    moves: to be carried out in order before the step reads or writes anything.

    The arrays are the cache's own and change with the next plan: a runner reads them during its step only.
    """

    arena: Arena
    table: Int32s
    run: Int32s
    moves: tuple[Move, ...] = ()
    prepare: Callable[[], None] = nothing

    def token_indices(self, slots: npt.NDArray[Any], positions: npt.NDArray[Any]) -> Int64s:
        """The arena's token index of each (slot, position); the two arrays broadcast against each other."""
        run = self.run[slots]
        indices: Int64s = self.table[slots, positions // run].astype(np.int64) + positions % run
        return indices
