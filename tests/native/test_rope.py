"""RoPE and the writing of keys and values, against float64."""

from __future__ import annotations

import ctypes
from ctypes import byref

import numpy as np
import numpy.typing as npt
import pytest

from tests.native.attention_library import BF16, INT8, Cache, CRope, Doubles, Shape, c_rows, from_bf16, load
from tests.native.build import available

ISAS = available()
pytestmark = pytest.mark.skipif(not ISAS, reason="no g++ here: the native library cannot be built")
every_isa = pytest.mark.parametrize("isa", ISAS)

EPS = 1e-5
ROWS = [(0, 0, 5), (1, 40, 1), (2, 7, 60), (3, 300, 1)]


def frequencies(rotary_dim: int) -> Doubles:
    return 10000.0 ** (-2.0 * np.arange(rotary_dim // 2) / rotary_dim)


def expected(x: Doubles, position: int, rotary_dim: int, norm: Doubles | None) -> Doubles:
    """One token's heads ``[heads, head_dim]``, normalised and rotated."""
    if norm is not None:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * norm
    half = rotary_dim // 2
    a, b, rest = x[:, :half], x[:, half:rotary_dim], x[:, rotary_dim:]
    c, s = np.cos(position * frequencies(rotary_dim)), np.sin(position * frequencies(rotary_dim))
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=1)


def rotate(isa: str, shape: Shape, run: int, rotary_dim: int, normed: bool) -> None:
    native, rng = load(isa), np.random.default_rng(3)
    d = shape.head_dim
    lengths = [start + length for _, start, length in ROWS]
    cache = Cache(shape, lengths, [run] * len(ROWS))
    tokens = sum(length for _, _, length in ROWS)
    qkv = rng.normal(size=(tokens, (shape.heads + 2 * shape.kv_heads) * d)).astype(np.float32)
    turns = np.zeros((max(lengths), rotary_dim), np.float32)
    freqs = frequencies(rotary_dim)
    native.octavo_rope_turns(freqs.ctypes.data, rotary_dim, len(turns), turns.ctypes.data)
    norms = [rng.uniform(0.5, 2, d).astype(np.float32) if normed else None for _ in range(2)]
    pointers = [norm.ctypes.data if norm is not None else None for norm in norms]
    q = np.full((tokens, shape.heads, d), 0xFFFF, np.uint16)
    rows = c_rows(ROWS)
    before = cache.memory.copy()
    args = CRope(
        qkv.ctypes.data, qkv.shape[1], ctypes.addressof(rows), len(ROWS), tokens, shape.heads, shape.kv_heads, d,
        turns.ctypes.data, rotary_dim, *pointers, EPS, cache.view(), q.ctypes.data, shape.heads * d,
    )  # fmt: skip
    native.octavo_rope(byref(args))

    def close(got: npt.NDArray[np.floating], want: Doubles, step: float) -> None:
        np.testing.assert_allclose(got, want, rtol=step, atol=1e-5)

    token, written = 0, []
    for slot, start, length in ROWS:
        read = [cache.read(slot, part, start + length) for part in range(2)]
        for position in range(start, start + length):
            heads = qkv[token].astype(np.float64).reshape(-1, d)
            query, key, value = np.split(heads, [shape.heads, shape.heads + shape.kv_heads])
            close(from_bf16(q[token]), expected(query, position, rotary_dim, norms[0]), 2**-8)
            for part, want in ((0, expected(key, position, rotary_dim, norms[1])), (1, value)):
                if shape.kind == BF16:
                    close(read[part][position], want, 2**-8)
                else:
                    step = np.abs(want).max(-1, keepdims=True) / 127
                    assert np.all(np.abs(read[part][position] - want) <= 0.5001 * step + 1e-5)
            token += 1
        written.append(cache.places(slot, start + length)[start:])
    untouched = np.setdiff1d(np.arange(cache.memory.shape[1]), np.concatenate(written))
    np.testing.assert_array_equal(cache.memory[:, untouched], before[:, untouched])


@every_isa
@pytest.mark.parametrize("run", [1, 3, 16, 512])
def test_rotated_and_stored_in_every_layout(isa: str, run: int) -> None:
    rotate(isa, Shape(9, 3), run, 64, normed=False)


@every_isa
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (48, 48), (80, 32), (256, 256)])
def test_head_sizes_and_partial_rotation(isa: str, head_dim: int, rotary_dim: int) -> None:
    rotate(isa, Shape(4, 2, head_dim), 16, rotary_dim, normed=False)


@every_isa
@pytest.mark.parametrize("kind", [BF16, INT8])
def test_normalised_heads(isa: str, kind: int) -> None:
    rotate(isa, Shape(4, 2, 128, kind), 16, 128, normed=True)


@every_isa
def test_int8(isa: str) -> None:
    rotate(isa, Shape(9, 3, 64, INT8), 16, 64, normed=False)


@every_isa
def test_a_head_of_zeros_is_stored_as_zeros(isa: str) -> None:
    """Its scale would be a division by zero."""
    native, shape = load(isa), Shape(1, 1, 16, INT8)
    cache = Cache(shape, [1], [16])
    qkv, turns, q = np.zeros((1, 48), np.float32), np.ones((1, 16), np.float32), np.zeros((1, 16), np.uint16)
    rows = c_rows([(0, 0, 1)])
    inputs = (qkv.ctypes.data, 48, ctypes.addressof(rows), 1, 1, 1, 1, 16, turns.ctypes.data, 16, None, None, EPS)
    native.octavo_rope(byref(CRope(*inputs, cache.view(), q.ctypes.data, 16)))
    for part in range(2):
        np.testing.assert_array_equal(cache.read(0, part, 1), np.zeros((1, 1, 16)))
