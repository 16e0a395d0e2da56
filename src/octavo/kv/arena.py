"""The arena: one piece of memory that holds the keys and values of every layer."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The shape of one token's keys and values. ``dtype`` is a key of ``DTYPE_BYTES``, or "int8": then a token's row holds its
    heads' int8 values, followed by one float32 scale for each head."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys (or values) in one layer."""
        if self.dtype == "int8":
            return self.kv_heads * (self.head_dim + DTYPE_BYTES["float32"])
        return self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers, keys and values."""
        return self.layers * 2 * self.row_bytes


class Arena:
    """``tokens`` places, each holding one token's keys and values of all layers; axes ``[layer][K|V][token][kv_head][dim]``.

    The memory is anonymous and mapped at once; a page costs nothing until it is first written. Pages are huge where the system
    offers that: with small ones, following a block table costs attention a tenth of its time and more.
    """

    def __init__(self, spec: KVSpec, tokens: int):
        self.spec = spec
        self.tokens = tokens
        self.memory = mmap.mmap(-1, max(1, spec.token_bytes * tokens), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            self.memory.madvise(mmap.MADV_HUGEPAGE)

    @property
    def bytes(self) -> int:
        """Bytes mapped for keys and values."""
        return self.spec.token_bytes * self.tokens

    def array(self) -> npt.NDArray[np.uint8]:
        """The memory as uint8 ``[layers, 2, tokens, row_bytes]``, not copied. Runners reread the last axis as their dtype."""
        flat = np.frombuffer(self.memory, dtype=np.uint8, count=self.bytes)
        return flat.reshape(self.spec.layers, 2, self.tokens, self.spec.row_bytes)


class UnbackedArena(Arena):
    """The shape of an arena without its memory, for virtual time: placement is real, nothing is computed."""

    def __init__(self, spec: KVSpec, tokens: int):
        self.spec = spec
        self.tokens = tokens

    def array(self) -> npt.NDArray[np.uint8]:
        """Raises: there is nothing to read or write."""
        raise RuntimeError("this arena has no memory: it serves a simulation, which places tokens and computes none.")
