"""The attention paths against their definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.attention.batch import Batch
from octavo.attention.gather import GatherAttention
from octavo.attention.path import AttentionPath
from octavo.attention.per_request import PerRequestAttention
from octavo.attention.reference import attention
from octavo.kv.arena import KVSpec
from octavo.kv.view import KVView
from octavo.models.program import Attention
from octavo.runner.fused import FusedAttention
from octavo.runner.launches import Launches
from octavo.scheduler.plan import Logits, Row
from tests.placement import CONTIGUOUS, MIXED, make_view

PATHS = [FusedAttention, GatherAttention, PerRequestAttention]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DIM = 16


class Case:
    """Rows (start, length) of as many sequences, with random queries, keys and values, and what attention of them is."""

    def __init__(self, rows, *, block=16, group=3, kv_heads=2, dtype="float32", window=None, softcap=0.0, spread=1.0, seed=0):
        random = np.random.default_rng(seed)
        self.dtype = DTYPES[dtype]
        self.heads, self.kv_heads = group * kv_heads, kv_heads
        self.op = Attention(0, "q", "out", DIM**-0.5, window, softcap)
        capacity = max(start + length for start, length in rows) + 9
        self.rows = [Row(slot, start, length, [0] * length, Logits.LAST) for slot, (start, length) in enumerate(rows)]
        self.view = make_view(KVSpec(1, kv_heads, DIM, dtype), len(rows), capacity, block, seed)
        self.cache = arena_tensor(self.view)[0]
        self.queries, self.expected = [], []
        for row in self.rows:
            context = row.start + row.length
            q, k, v = (
                self.rounded(random.normal(0, spread, (n, heads, DIM)))
                for n, heads in ((row.length, self.heads), (context, kv_heads), (context, kv_heads))
            )
            places = torch.from_numpy(self.view.token_indices(np.full(context, row.slot), np.arange(context)))
            for half, values in enumerate((k, v)):
                self.cache[half, places] = values.to(self.dtype).view(context, -1)
            self.queries.append(q)
            self.expected.append(attention(q.numpy(), k.numpy(), v.numpy(), self.op.scale, window, softcap))

    def rounded(self, values) -> torch.Tensor:
        """float64, but values of the element type that is tested: the inputs' rounding is not the path's error."""
        return torch.from_numpy(values).to(self.dtype).double()

    def errors(self, path_class: type[AttentionPath]) -> list[float]:
        """The largest difference in each row."""
        launches = Launches()
        path = path_class(self.heads, self.kv_heads, DIM, self.dtype, launches)
        batch = Batch.of(self.rows, self.view)
        q = torch.cat([self.queries[row] for row in batch.order]).to(self.dtype)
        out = torch.full((batch.tokens, self.heads * DIM), torch.nan, dtype=self.dtype)
        path.begin(batch)
        path.attend(self.op, q, self.cache, out)
        self.launches = launches.count
        results = torch.split(out.double().view(-1, self.heads, DIM), batch.lengths.tolist())
        found = dict(zip(batch.order.tolist(), results, strict=True))
        return [float(np.abs(found[i].numpy() - self.expected[i]).max()) for i in range(len(self.rows))]


def arena_tensor(view: KVView) -> torch.Tensor:
    spec = view.arena.spec
    dtype = DTYPES[spec.dtype]
    return torch.frombuffer(view.arena.memory, dtype=dtype).view(spec.layers, 2, view.arena.tokens, -1)


MIXED_ROWS = [(0, 1), (40, 1), (7, 1), (300, 1), (0, 37), (64, 5), (100, 33), (0, 2), (21, 1)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", [CONTIGUOUS, MIXED, 1, 2, 16, 64, 256])
def test_decode_and_prefill_in_every_layout(path, block):
    assert max(Case(MIXED_ROWS, block=block).errors(path)) < 2e-6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("window", [None, 1, 8, 64])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("group", [1, 3])
def test_windows_caps_and_query_groups(path, window, softcap, group):
    case = Case([*MIXED_ROWS, (90, 300)], window=window, softcap=softcap, group=group, spread=2.0)
    assert max(case.errors(path)) < 1e-5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", [CONTIGUOUS, 16])
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (100, 0.0), (None, 3.0), (1000, 3.0)])
def test_a_long_prefill_is_computed_in_chunks(path, block, window, softcap):
    case = Case([(130, 700)], block=block, window=window, softcap=softcap, kv_heads=1)
    assert max(case.errors(path)) < 5e-6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_16_bit_types_lose_little_more_than_the_rounding_of_the_result(path, dtype, bound):
    """``bound`` is the type's rounding error. Scores have a spread of about 9: rounded to the type themselves, they alone would
    be off by more than what is accepted here."""
    case = Case(MIXED_ROWS, dtype=dtype, spread=3.0)
    scale = max(float(np.abs(e).max()) for e in case.expected)
    assert max(case.errors(path)) < 2 * bound * scale


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 150), st.one_of(st.just(1), st.integers(1, 90))), min_size=1, max_size=12),
    block=st.sampled_from([CONTIGUOUS, MIXED, 1, 4, 32]),
    window=st.one_of(st.none(), st.integers(1, 100)),
    kv_heads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**20),
)
def test_any_batch(path, rows, block, window, kv_heads, seed):
    case = Case(rows, block=block, window=window, kv_heads=kv_heads, group=2, seed=seed)
    assert max(case.errors(path)) < 5e-6


def test_a_sequence_of_nan_does_not_reach_its_batch_mates():
    case = Case([(200, 1), (20, 1), (150, 1), (0, 40), (0, 33)])
    places = torch.from_numpy(case.view.token_indices(np.full(201, 0), np.arange(201)))
    case.cache[:, places] = torch.nan
    for path in PATHS:
        errors = case.errors(path)
        assert np.isnan(errors[0])
        assert max(errors[1:]) < 2e-6


def test_the_paths_differ_in_launches():
    """32 sequences decode: per-request launches for each of them, gather copies for each of them, fused does neither."""
    case = Case([(100 + i, 1) for i in range(32)])
    counts = []
    for path in (FusedAttention, GatherAttention, PerRequestAttention):
        case.errors(path)
        counts.append(case.launches)
    fused, gather, per_request = counts
    assert fused < 10
    assert gather == fused - 1 + 2 * 32
    assert per_request == 32 * fused


def test_a_prefill_in_one_run_is_read_in_place():
    rows = [(50, 100)]
    copied, in_place = Case(rows, block=16), Case(rows, block=CONTIGUOUS)
    for case in (copied, in_place):
        case.errors(FusedAttention)
    assert in_place.launches == copied.launches - 1
