"""EngineCore's gauges."""

from __future__ import annotations

from tests.fake_engine import fake_engine, request

TOKEN_BYTES = 8


def test_bytes_of_the_kv_cache_and_their_peaks_are_those_of_a_step_while_it_runs() -> None:
    core = fake_engine(capacity=100, block_size=16)
    assert core.stats().kv_bytes() == {
        "reserved": 0,
        "used": 0,
        "wasted": 4 * TOKEN_BYTES,
    }  # 100 tokens are 6 blocks and 4 tokens
    core.add(request("a", list(range(20)), max_tokens=1))
    stats = core.step().stats  # the prompt is computed, one token is sampled, everything is released
    assert stats.kv_bytes() == {"reserved": 0, "used": 0, "wasted": 4 * TOKEN_BYTES}
    assert stats.kv_peak_bytes() == {"reserved": 32 * TOKEN_BYTES, "used": 20 * TOKEN_BYTES, "wasted": 16 * TOKEN_BYTES}


def test_each_peak_is_kept_by_itself() -> None:
    core = fake_engine(capacity=96, block_size=16)
    core.add(request("a", list(range(31)), max_tokens=2))
    core.step()  # 31 of 32 tokens
    assert core.stats().kv_bytes() == {"reserved": 32 * TOKEN_BYTES, "used": 31 * TOKEN_BYTES, "wasted": TOKEN_BYTES}
    core.step()  # 32 of 32
    core.add(request("b", [1], max_tokens=1))
    core.step()  # 1 of 16
    assert core.stats().kv_peak_bytes() == {"reserved": 32 * TOKEN_BYTES, "used": 32 * TOKEN_BYTES, "wasted": 15 * TOKEN_BYTES}
