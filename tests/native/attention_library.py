"""RoPE and attention of one build of the native library, as tests call them: C structures, an arena of NaN, float64 oracles."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.native.build import library

BF16, INT8 = 0, 1
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class CRow(Structure):
    _fields_ = (("slot", c_int32), ("start", c_int32), ("length", c_int32), ("first", c_int32))


class CShape(Structure):
    _fields_ = (("heads", c_int), ("kv_heads", c_int), ("head_dim", c_int), ("kind", c_int32))


class CView(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("scale_offset", c_int64),
        ("table", c_void_p),
        ("run", c_void_p),
        ("width", c_int32),
        ("kind", c_int32),
    )


class CAttention(Structure):
    _fields_ = (
        ("plan", c_void_p),
        ("kv", CView),
        ("rows", c_void_p),
        ("q", c_void_p),
        ("ldq", c_int64),
        ("out", c_void_p),
        ("ldo", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
    )


class CRope(Structure):
    _fields_ = (
        ("qkv", c_void_p),
        ("ldqkv", c_int64),
        ("rows", c_void_p),
        ("row_count", c_int),
        ("tokens", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("turns", c_void_p),
        ("rotary_dim", c_int),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("eps", c_float),
        ("kv", CView),
        ("q", c_void_p),
        ("ldq", c_int64),
    )


def load(isa: str) -> ctypes.CDLL:
    """The library with its C border declared."""
    native = library(isa, ("attention", "rope"))
    native.octavo_attention.argtypes = [POINTER(CAttention), POINTER(CShape), c_int, c_int, c_int]
    native.octavo_attention.restype = None
    native.octavo_attention_error.argtypes = [POINTER(CShape)]
    native.octavo_attention_error.restype = ctypes.c_char_p
    native.octavo_rope.argtypes = [POINTER(CRope)]
    native.octavo_rope.restype = None
    native.octavo_rope_turns.argtypes = [c_void_p, c_int, c_int, c_void_p]
    native.octavo_rope_turns.restype = None
    return native


def to_bf16(x: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: npt.NDArray[np.uint16]) -> Floats:
    return (x.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Shape:
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    kind: int = BF16

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def token_bytes(self) -> int:
        """Of keys, or of values; int8 rows carry their heads' float32 scales at the end."""
        return self.kv_heads * (self.head_dim * 2 if self.kind == BF16 else self.head_dim + 4)


@dataclass
class Cache:
    """An arena of one layer, every byte NaN until written, and tables that place sequences of ``lengths`` tokens in it.

    runs: per sequence the run length. Runs lie in random order with gaps between them.
    """

    shape: Shape
    lengths: list[int]
    runs: list[int]
    seed: int = 0
    memory: npt.NDArray[np.uint8] = field(init=False)
    table: npt.NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        counts = [-(-length // run) for length, run in zip(self.lengths, self.runs, strict=True)]
        pieces = [(slot, index) for slot, count in enumerate(counts) for index in range(count)]
        np.random.default_rng(self.seed).shuffle(pieces)
        self.table = np.full((len(self.lengths), max(counts) + 1), -(2**30), np.int32)
        end = 3
        for slot, index in pieces:
            self.table[slot, index] = end
            end += self.runs[slot] + (slot + index) % 2
        self.memory = np.full((2, end, self.shape.token_bytes), 0xFF, np.uint8)  # NaN as bf16 and as float32
        self.run = np.array(self.runs, np.int32)

    def places(self, slot: int, count: int) -> npt.NDArray[np.int64]:
        positions = np.arange(count)
        return self.table[slot, positions // self.runs[slot]].astype(np.int64) + positions % self.runs[slot]

    def write(self, slot: int, keys: Floats, values: Floats) -> tuple[Doubles, Doubles]:
        """Store ``[tokens, kv_heads, head_dim]`` from position 0 on; returns what a reader finds there."""
        found = []
        for part, x in enumerate((keys, values)):
            places = self.places(slot, len(x))
            if self.shape.kind == BF16:
                stored = to_bf16(x)
                self.memory[part, places] = stored.reshape(len(x), -1).view(np.uint8)
                found.append(from_bf16(stored).astype(np.float64))
            else:
                scale = (np.abs(x).max(-1) / 127).astype(np.float32)
                q = np.rint(x / scale[..., None]).astype(np.int8)
                rows = [q.reshape(len(x), -1).view(np.uint8), scale.reshape(len(x), -1).view(np.uint8)]
                self.memory[part, places] = np.concatenate(rows, axis=1)
                found.append(q.astype(np.float64) * scale[..., None])
        return found[0], found[1]

    def read(self, slot: int, part: int, count: int) -> Doubles:
        """What lies at positions below ``count``: ``[tokens, kv_heads, head_dim]``."""
        s = self.shape
        rows = self.memory[part, self.places(slot, count)]
        if s.kind == BF16:
            return from_bf16(rows.view(np.uint16)).astype(np.float64).reshape(count, s.kv_heads, s.head_dim)
        q = rows[:, : s.kv_heads * s.head_dim].view(np.int8).reshape(count, s.kv_heads, s.head_dim)
        return q * np.ascontiguousarray(rows[:, s.kv_heads * s.head_dim :]).view(np.float32).astype(np.float64)[..., None]

    def view(self) -> CView:
        s = self.shape
        return CView(
            self.memory[0].ctypes.data,
            self.memory[1].ctypes.data,
            s.token_bytes,
            s.head_dim * (2 if s.kind == BF16 else 1),
            s.kv_heads * s.head_dim,
            self.table.ctypes.data,
            self.run.ctypes.data,
            self.table.shape[1],
            s.kind,
        )


def c_rows(rows: list[tuple[int, int, int]]) -> ctypes.Array[CRow]:
    """(slot, start, length) of each row, its tokens after those of the rows before it."""
    firsts = np.cumsum([0, *(length for _, _, length in rows)])
    return (CRow * len(rows))(*(CRow(*row, int(first)) for row, first in zip(rows, firsts, strict=False)))


def attend(
    native: ctypes.CDLL,
    cache: Cache,
    rows: list[tuple[int, int, int]],
    q: npt.NDArray[np.uint16],
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    workers: int = 1,
) -> npt.NDArray[np.uint16]:
    """Attention of the rows' tokens, bf16 ``[tokens, heads, head_dim]`` in and out."""
    out = np.full(q.shape, 0xFFFF, np.uint16)
    width = q.shape[1] * q.shape[2]
    the_rows = c_rows(rows)
    args = CAttention(
        None, cache.view(), ctypes.addressof(the_rows), q.ctypes.data, width, out.ctypes.data, width, scale, softcap
    )
    s = cache.shape
    native.octavo_attention(byref(args), byref(CShape(s.heads, s.kv_heads, s.head_dim, s.kind)), len(rows), window, workers)
    return out


def oracle(
    q: Floats, keys: Doubles, values: Doubles, start: int, scale: float, window: int, softcap: float
) -> tuple[Doubles, Doubles]:
    """float64 attention of one row: q ``[length, heads, head_dim]``; also the sum of |probability * value|, for error bounds."""
    group = q.shape[1] // keys.shape[1]
    k, v = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    s = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * scale
    if softcap:
        s = softcap * np.tanh(s / softcap)
    at, key_at = start + np.arange(len(q))[:, None], np.arange(len(k))[None, :]
    seen = key_at <= at
    if window:
        seen &= key_at > at - window
    s = np.where(seen, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", p, v), np.einsum("hqk,khd->qhd", p, np.abs(v))
