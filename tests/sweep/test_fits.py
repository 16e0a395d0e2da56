"""How many requests fit, by hand, in each layout.

The tiny model has 2 layers, 2 KV heads of 16 in float32: 128 bytes a row, 512 bytes a token. So 256 KiB hold 512 tokens: 32
blocks of 16, or 16 pages of 4 KiB in each of the 4 tensors, with 32 tokens in each.
"""

from __future__ import annotations

import pytest

from octavo.bench.suites import suite
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.config import EngineConfig
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import open_checkpoint
from octavo.sweep.fits import count_fits
from tests.checkpoints import tiny_llama

ALONE = Workload(
    "alone",
    (
        BenchRequest(0, (Segment(0, 40),), 10),  # 50 tokens
        BenchRequest(1, (Segment(1, 20),), 5),  # 25
        BenchRequest(2, (Segment(2, 7),), 1),  # 8; 83 in a cycle
    ),
    0,
    "",
)
SHARED = Workload("shared", tuple(BenchRequest(i, (Segment(9, 64), Segment(i, 10)), 6) for i in range(2)), 0, "")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(tiny_llama(tmp_path_factory.mktemp("fits"))))


def fits(checkpoint: Checkpoint, workload: Workload, **settings: object) -> int:
    config = EngineConfig(max_model_len=128, kv_memory=256 * 2**10, max_num_seqs=1, **settings)  # type: ignore[arg-type]
    return count_fits(config, workload, checkpoint)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kv_layout": "contiguous"}, 4),  # 512 / 128
        ({"kv_layout": "contiguous", "contiguous_reserve": "request"}, 18),  # 6 cycles are 498 tokens; 50 more do not fit
        ({"kv_layout": "contiguous", "contiguous_reserve": "grow"}, 18),  # its limit is its length
        ({"kv_layout": "paged", "block_size": 1}, 18),
        ({"kv_layout": "paged", "block_size": 16}, 13),  # 4 + 2 + 1 blocks a cycle: 4 cycles, and one of 4 blocks
        ({"kv_layout": "paged", "block_size": 64}, 8),  # a block each
        ({"kv_layout": "hybrid", "block_size": 16, "hybrid_threshold": 30}, 13),  # runs of 2 and of 1 block
        ({"kv_layout": "virtual"}, 12),  # 2 + 1 + 1 rows a cycle: 4 cycles
    ],
    ids=str,
)
def test_by_hand(checkpoint: Checkpoint, settings: dict[str, object], expected: int) -> None:
    assert fits(checkpoint, ALONE, **settings) == expected


def test_what_is_shared_is_counted_once(checkpoint: Checkpoint) -> None:
    # 80 tokens, 5 blocks, of which 4 are shared: the first takes 5 of 32, each further one 1
    assert fits(checkpoint, SHARED, kv_layout="paged", block_size=16) == 28
    assert fits(checkpoint, SHARED, kv_layout="paged", block_size=16, enable_prefix_caching=False) == 6
    # virtual: 3 rows, of which 2 are shared: 3, then 1 each of 16
    assert fits(checkpoint, SHARED, kv_layout="virtual") == 14
    # contiguous copies
    assert fits(checkpoint, SHARED, kv_layout="contiguous", contiguous_reserve="request") == 6


def test_more_fit_than_there_are_slots_at_first(checkpoint: Checkpoint) -> None:
    config = EngineConfig(max_model_len=128, kv_memory=2**21, kv_layout="paged", block_size=1)
    # 4096 tokens: 49 cycles of 83 are 4067, and 25 more do not fit behind the next 50, which do not
    assert count_fits(config, ALONE, checkpoint) == 147


def test_paged_holds_at_least_five_times_what_max_len_does() -> None:
    """1 GiB, suite mixed, max_model_len 8192: the bar, in the shape of SmolLM2-135M."""
    checkpoint = open_checkpoint("smollm2-135m")
    workload = suite("mixed", max_model_len=8192)

    def held(**settings: object) -> int:
        config = EngineConfig(runner="torch", dtype="bfloat16", max_model_len=8192, kv_memory=2**30, **settings)  # type: ignore[arg-type]
        return count_fits(config, workload, checkpoint)

    whole = held(kv_layout="contiguous")
    assert whole == 5  # 46603 tokens of 23040 bytes / 8192
    for layout in ("paged", "hybrid", "virtual"):
        assert held(kv_layout=layout) >= 5 * whole
