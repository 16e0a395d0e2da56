"""The grid: nothing twice, nothing left out without a reason, one max_model_len for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import open_checkpoint
from octavo.sweep.grid import make_grid
from tests.checkpoints import tiny_llama
from tests.sweep.test_asked import asked

TINY = {"max_model_len": 128, "threads": 1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(tiny_llama(tmp_path_factory.mktemp("grid"))))


def test_block_sizes_multiply_only_the_layouts_that_have_blocks(checkpoint: Checkpoint) -> None:
    grid = make_grid(asked("--block-sizes", "8,16", "--kv-memory", "1MiB", settings=TINY), checkpoint)
    assert [setup.title for setup in grid.setups] == [
        "contiguous (max-len)", "contiguous (request)", "paged 8", "paged 16", "hybrid 8", "hybrid 16", "virtual",
    ]  # fmt: skip
    assert len(grid.points) == len(set(grid.points)) == 7
    (skipped,) = grid.skipped
    assert skipped.reason == "contiguous and virtual have no blocks: measured once, not once for each block size."


def test_quick_measures_hybrid_once(checkpoint: Checkpoint) -> None:
    words = ("--quick", "--layouts", "paged,hybrid", "--kv-memory", "1MiB")
    grid = make_grid(asked(*words, settings=TINY), checkpoint)
    assert [setup.title for setup in grid.setups] == ["paged 1", "paged 16", "paged 256", "hybrid 16"]
    assert [(s.what, s.reason) for s in grid.skipped] == [("hybrid 1, 256", "quick measures hybrid with block size 16 alone.")]


def test_a_combination_that_is_refused_is_skipped_with_the_engines_own_sentence(checkpoint: Checkpoint) -> None:
    words = ("--layouts", "contiguous,paged", "--block-sizes", "16", "--kv-memory", "8KiB,1MiB", "--attention", "fused,gather")
    grid = make_grid(asked(*words, settings=TINY), checkpoint)
    # 8 KiB are 16 tokens of 512 bytes: too few for a request of 128 in any layout
    assert {point.group.kv_memory for point in grid.points} == {2**20}
    reasons = {skipped.what: skipped.reason for skipped in grid.skipped}
    assert (
        "max_model_len is 128, but the KV memory (8 KiB) holds a sequence of at most 16 tokens" in reasons["paged 16 with 8 KiB"]
    )
    assert "contiguous (max-len), gather with 8 KiB" in reasons
    assert [point.setup.attention for point in grid.points] == ["fused"] * 3 + ["gather"] * 3  # one runner after the other


def test_settings_go_where_they_have_a_meaning(checkpoint: Checkpoint) -> None:
    words = ("--layouts", "contiguous,paged,hybrid", "--block-sizes", "16", "--kv-memory", "1MiB")
    given = {**TINY, "compaction": "pause", "hybrid_threshold": 64, "max_preemptions": 2}
    configs = {setup.title: config for (setup, _), config in make_grid(asked(*words, settings=given), checkpoint).configs.items()}
    assert {title: config.compaction for title, config in configs.items() if config.compaction} == {
        "contiguous (request)": "pause"
    }
    assert {title: config.hybrid_threshold for title, config in configs.items() if config.hybrid_threshold} == {"hybrid 16": 64}
    assert {title for title, config in configs.items() if config.max_preemptions == 2} == {"paged 16", "hybrid 16"}
    only = make_grid(asked(*words, settings={**TINY, "contiguous_reserve": "grow"}), checkpoint)
    assert [s.title for s in only.setups] == ["contiguous (grow)", "paged 16", "hybrid 16"]


def test_a_setting_that_nothing_can_use_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="hybrid_threshold is 64, but no layout that is swept can use it"):
        make_grid(asked("--layouts", "paged", settings={**TINY, "hybrid_threshold": 64}), checkpoint)


def test_all_are_asked_what_the_smallest_memory_holds(checkpoint: Checkpoint) -> None:
    grid = make_grid(asked("--kv-memory", "128KiB,1MiB", settings={"threads": 1}), checkpoint)
    # virtual: 128 KiB are 8 rows of a 4 KiB page in 4 tensors, of 32 tokens; the others hold 256 tokens of 512 bytes
    assert grid.max_model_len == 256
    assert {config.max_model_len for config in grid.configs.values()} == {256}


def test_slots_for_all_that_is_sent_and_for_the_largest_batch(checkpoint: Checkpoint) -> None:
    words = ("--layouts", "paged", "--block-sizes", "16", "--kv-memory", "1MiB", "--concurrency", "100", "--batches", "1,3000")
    (config,) = make_grid(asked(*words, settings=TINY), checkpoint).configs.values()
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (3000, 3000)


def test_nothing_left_is_an_error_with_the_last_reason(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing is left to sweep\. runner is native, but attention"):
        make_grid(asked("--attention", "gather", settings={**TINY, "enforce_eager": True, "runner": "native"}), checkpoint)
