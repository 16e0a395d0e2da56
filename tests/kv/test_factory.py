"""build_cache: what it refuses, and with which words."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.kv.arena import KVSpec, UnbackedArena
from octavo.kv.factory import build_cache
from tests.kv.memory import PLAN, cache


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        ("paged", {"block_size": 12}, "block_size is 12: a power of two from 1 to 256 is accepted."),
        ("paged", {"block_size": 512}, "block_size is 512: a power of two from 1 to 256 is accepted."),
        ("hybrid", {"block_size": 0}, "block_size is 0: a power of two from 1 to 256 is accepted."),
        ("slab", {}, "kv_layout is 'slab': contiguous, paged, hybrid or virtual is accepted."),
        ("contiguous", {"contiguous_reserve": "guess"}, "contiguous_reserve is 'guess': max-len, request or grow is accepted."),
        ("contiguous", {"contiguous_reserve": "grow", "compaction": "later"}, "compaction is 'later': pause or incremental"),
        ("hybrid", {"hybrid_threshold": 0}, "hybrid_threshold is 0: at least 1 token is accepted."),
        ("paged", {"slots": 0}, "slots is 0: at least 1 is accepted."),
        ("paged", {"max_model_len": 0}, "max_model_len is 0: at least 1 is accepted."),
        ("paged", {"capacity": 2**31}, r"holds 2147483648 tokens: at most 2147483647 can be addressed"),
        ("paged", {"capacity": 3}, "holds 3 tokens of 16 bytes, less than one block of block_size=4 tokens: .* 64 bytes"),
        (
            "contiguous",
            {"capacity": 63},
            "holds 63 tokens of 16 bytes, less than one run of max_model_len=64 tokens: .* 1024 bytes",
        ),
        ("contiguous", {"contiguous_reserve": "request", "capacity": 0}, "less than one token"),
    ],
)
def test_what_cannot_work_is_refused_by_name(layout: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cache(layout, **settings)


@pytest.mark.parametrize("layout", ["contiguous", "paged", "hybrid"])
def test_a_simulated_cache_places_tokens_without_memory(layout: str) -> None:
    spec = KVSpec(layers=80, kv_heads=8, head_dim=128, dtype="bfloat16")
    kv = build_cache(
        layout, spec, capacity=10**6, slots=4, max_model_len=1000, block_size=16, prefix_caching=False, make_arena=UnbackedArena
    )
    assert kv.admit(0, [1] * 100, expected=200, limit=200) == 0
    kv.computed(0, 100)
    assert kv.usage().used == 100
    assert kv.arena.bytes == 10**6 * 80 * 2 * 8 * 128 * 2
    view = kv.view(PLAN)
    assert view.token_indices(np.array([0]), np.array([99])).shape == (1,)
    with pytest.raises(RuntimeError, match="simulation"):
        kv.arena.array()


def test_the_description_names_every_setting_that_takes_effect() -> None:
    assert cache("paged", block_size=8, prefix_caching=True).describe() == {
        "kv_layout": "paged",
        "block_size": "8",
        "enable_prefix_caching": "on, every 8 tokens",
        "KV memory": "1 KiB: 64 tokens of 16 bytes (float32)",
    }
    assert cache("hybrid").describe()["hybrid_threshold"] == "12"
    contiguous = cache("contiguous", contiguous_reserve="request").describe()
    assert contiguous["contiguous_reserve"] == "request"
    assert contiguous["enable_prefix_caching"] == "off"
    assert "block_size" not in contiguous


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_every_block_size_is_there(block_size: int) -> None:
    kv = cache(block_size=block_size, capacity=512, max_model_len=300)
    assert kv.admit(0, [1] * 300, expected=300, limit=300) == 0
    assert kv.usage().reserved == -(-300 // block_size) * block_size
    assert kv.view(PLAN).table.shape == (8, -(-300 // block_size))
