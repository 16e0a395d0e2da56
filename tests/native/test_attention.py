"""Attention over every layout against float64, and the promise that a sequence's output depends on its own tokens alone, bitwise.

Every arena is full of NaN where no token was written: whatever reads a tail slot shows it.
"""

from __future__ import annotations

import ctypes
from ctypes import byref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.attention_library import (
    BF16,
    INT8,
    Cache,
    CShape,
    Doubles,
    Shape,
    attend,
    from_bf16,
    load,
    oracle,
    to_bf16,
)
from tests.native.build import available

ISAS = available()
pytestmark = pytest.mark.skipif(not ISAS, reason="no g++ here: the native library cannot be built")
every_isa = pytest.mark.parametrize("isa", ISAS)

ONE_RUN = 10_000


@dataclass
class Batch:
    """Sequences in a cache and the rows of one step over them: (slot, start, length)."""

    cache: Cache
    rows: list[tuple[int, int, int]]
    q: npt.NDArray[np.uint16]
    kv: list[tuple[Doubles, Doubles]]


def make(
    rows: list[tuple[int, int]],
    shape: Shape | None = None,
    runs: list[int] | int = 16,
    seed: int = 0,
    layout_seed: int = 0,
    spread: float = 1.0,
) -> Batch:
    """A batch of (start, length) rows, each of a sequence of its own with random tokens. What the tokens are depends on the
    sequence's index and ``seed``, not on the layout."""
    shape = shape or Shape()
    lengths = [start + length for start, length in rows]
    run_list = [runs] * len(rows) if isinstance(runs, int) else runs
    cache = Cache(shape, lengths, [min(run, length + 5) for run, length in zip(run_list, lengths, strict=True)], layout_seed)
    q, kv = [], []
    for slot, (_, length) in enumerate(rows):
        rng = np.random.default_rng((seed, slot))
        size = (lengths[slot], shape.kv_heads, shape.head_dim)
        kv.append(cache.write(slot, rng.normal(size=size).astype(np.float32), rng.normal(size=size).astype(np.float32)))
        whole = to_bf16(rng.normal(size=(lengths[slot], shape.heads, shape.head_dim)) * spread)
        q.append(whole[lengths[slot] - length :])
    return Batch(cache, [(slot, *row) for slot, row in enumerate(rows)], np.concatenate(q), kv)


def run(native: ctypes.CDLL, batch: Batch, **how: float) -> npt.NDArray[np.uint16]:
    how.setdefault("scale", batch.cache.shape.head_dim**-0.5)
    return attend(native, batch.cache, batch.rows, batch.q, **how)  # type: ignore[arg-type]


def check(isa: str, batch: Batch, window: int = 0, softcap: float = 0.0, workers: int = 1, scale: float | None = None) -> None:
    """Compare with float64. Where products are in bf16, probabilities are rounded to it, by 2^-8 of themselves at most, and their
    sum with them; elsewhere they are good to 1e-4. The output is rounded to bf16."""
    scale = scale if scale is not None else batch.cache.shape.head_dim**-0.5
    out = from_bf16(run(load(isa), batch, window=window, softcap=softcap, workers=workers, scale=scale))
    first = 0
    for slot, start, length in batch.rows:
        want, weight = oracle(from_bf16(batch.q[first : first + length]), *batch.kv[slot], start, scale, window, softcap)
        probabilities = 2**-8 if isa in ("avx512", "amx", "amx-emulated") else 2e-4
        bound = probabilities * (weight + np.abs(want)) + 2**-8 * np.abs(want) + 1e-5
        got = out[first : first + length]
        assert np.isfinite(got).all(), f"row {slot} read what is not there"
        worst = np.max(np.abs(got - want) / bound)
        assert worst <= 1, f"row {slot}: error is {worst:.2f} of what rounding explains"
        first += length


MIXED = [(0, 1), (0, 7), (126, 1), (127, 1), (128, 1), (200, 45), (515, 1), (33, 130), (1, 2)]


@every_isa
@pytest.mark.parametrize("run_length", [1, 2, 3, 8, 16, 31, 64, 128, 256, ONE_RUN])
def test_every_layout_against_float64(isa: str, run_length: int) -> None:
    check(isa, make(MIXED, Shape(6, 2), run_length))


@every_isa
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (9, 3), (8, 2), (8, 1), (14, 2), (5, 5)])
def test_groups(isa: str, heads: int, kv_heads: int) -> None:
    check(isa, make(MIXED, Shape(heads, kv_heads)))


@every_isa
@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 80, 96, 112, 128, 192, 256])
def test_head_sizes(isa: str, head_dim: int) -> None:
    check(isa, make(MIXED, Shape(6, 3, head_dim)))


@every_isa
@pytest.mark.parametrize("window", [1, 2, 31, 64, 128, 129, 300])
def test_sliding_windows(isa: str, window: int) -> None:
    check(isa, make([*MIXED, (700, 200)]), window=window)


@every_isa
def test_soft_caps(isa: str) -> None:
    check(isa, make(MIXED, spread=8.0), softcap=5.0)
    check(isa, make(MIXED, spread=8.0), softcap=50.0, window=100)


@every_isa
def test_scale_is_applied(isa: str) -> None:
    check(isa, make(MIXED), scale=0.03)


@every_isa
@pytest.mark.parametrize("workers", [1, 2, 64])
def test_long_sequences_are_shared_by_workers(isa: str, workers: int) -> None:
    check(isa, make([(3000, 1), (20, 1), (1900, 40)], Shape(6, 2)), workers=workers)


@every_isa
def test_scores_far_apart(isa: str) -> None:
    """Nearly all of the probability on one token, which may lie in any tile: nothing overflows, nothing vanishes."""
    check(isa, make([(900, 1), (0, 400)], spread=60.0))


@every_isa
@pytest.mark.parametrize("run_length", [1, 16, ONE_RUN])
def test_int8_cache(isa: str, run_length: int) -> None:
    check(isa, make(MIXED, Shape(6, 2, kind=INT8), run_length))
    check(isa, make(MIXED, Shape(4, 1, 80, kind=INT8), run_length), window=100, softcap=20.0)


# Bit for bit.


@every_isa
@pytest.mark.parametrize("kind", [BF16, INT8])
def test_layouts_agree_bitwise(isa: str, kind: int) -> None:
    native, shape = load(isa), Shape(6, 2, kind=kind)
    want = run(native, make(MIXED, shape, ONE_RUN))
    for run_length in (1, 2, 5, 16, 64, 256):
        for layout_seed in (1, 2):
            np.testing.assert_array_equal(run(native, make(MIXED, shape, run_length, layout_seed=layout_seed)), want)
    hybrid = [ONE_RUN if slot % 2 else 16 for slot in range(len(MIXED))]
    np.testing.assert_array_equal(run(native, make(MIXED, shape, hybrid)), want)


@every_isa
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (150, 0.0), (0, 20.0), (40, 20.0)])
@pytest.mark.parametrize("heads", [1, 3, 4, 8])
def test_chunks_agree_bitwise_with_the_whole(isa: str, heads: int, window: int, softcap: float) -> None:
    """A prompt computed in one go, in chunks of any size, and token by token as in decoding."""
    native, length = load(isa), 417
    whole = make([(0, length)], Shape(heads, 1))
    how = {"window": window, "softcap": softcap}
    want = run(native, whole, **how)
    for chunk in (1, 7, 64, 128, 200):
        for start in range(0, length, chunk):
            if chunk == 1 and start % 13 and start % 128 > 2:
                continue
            end = min(length, start + chunk)
            part = Batch(whole.cache, [(0, start, end - start)], whole.q[start:end], whole.kv)
            np.testing.assert_array_equal(run(native, part, **how), want[start:end], err_msg=f"tokens {start} to {end}")


@every_isa
def test_sums_that_vanish_have_one_sign(isa: str) -> None:
    """Products that underflow leave a zero of their sign, which must not tell what lay behind a query's token."""
    native, length = load(isa), 70
    cache = Cache(Shape(1, 1), [length], [16])
    keys, values = np.zeros((length, 1, 64), np.float32), np.full((length, 1, 64), -1.3e-38, np.float32)
    keys[0], values[0] = 0.5, 0.0  # the first token has most of the probability, the others less than 1
    cache.write(0, keys, values)
    q = to_bf16(np.ones((length, 1, 64)))
    whole = attend(native, cache, [(0, 0, length)], q, scale=0.125)
    for start in (1, 31, 63, 65):  # of these some end a step of tokens alone and not with those computed beside them
        np.testing.assert_array_equal(attend(native, cache, [(0, start, 1)], q[start : start + 1], scale=0.125)[0], whole[start])


@every_isa
def test_workers_and_batch_mates_do_not_matter(isa: str) -> None:
    native = load(isa)
    rows = [(2500, 1), (0, 300), (1000, 64), (17, 1), (700, 3)]
    batch = make(rows, Shape(6, 2), 16)
    want = run(native, batch)
    for workers in (2, 3, 16, 64):
        np.testing.assert_array_equal(run(native, batch, workers=workers), want)
    first = 0
    for slot, start, length in batch.rows:
        alone = Batch(batch.cache, [(slot, start, length)], batch.q[first : first + length], batch.kv)
        for workers in (1, 8):
            np.testing.assert_array_equal(run(native, alone, workers=workers), want[first : first + length])
        first += length


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 70)), min_size=1, max_size=4),
    runs=st.integers(1, 300),
    group=st.integers(1, 9),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([16, 32, 64, 80]),
    kind=st.sampled_from([BF16, INT8]),
    window=st.sampled_from([0, 0, 5, 100, 256]),
    softcap=st.sampled_from([0.0, 0.0, 10.0]),
    workers=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("isa", ISAS)
def test_any_batch(isa, rows, runs, group, kv_heads, head_dim, kind, window, softcap, workers, seed) -> None:  # type: ignore[no-untyped-def]
    batch = make(rows, Shape(group * kv_heads, kv_heads, head_dim, kind), runs, seed=seed, layout_seed=seed)
    check(isa, batch, window=window, softcap=softcap, workers=workers)


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        (CShape(3, 1, 72, 0), b"head_dim"),
        (CShape(3, 1, 320, 0), b"head_dim"),
        (CShape(4, 3, 64, 0), b"heads"),
        (CShape(400, 400, 128, 0), b"64 KiB"),
    ],
)
def test_unsupported_shapes_are_named(shape: CShape, word: bytes) -> None:
    assert word in load(ISAS[0]).octavo_attention_error(byref(shape))


def test_supported_shapes_are_accepted() -> None:
    assert load(ISAS[0]).octavo_attention_error(byref(CShape(9, 3, 64, 0))) is None
