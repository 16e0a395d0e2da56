"""Settings: checked where they are defined, refused by name, the same from Python, TOML and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig, ServerConfig, from_mapping, read_toml
from octavo.errors import ConfigError
from octavo.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"block_size": 3}, "block_size is 3: a power of two from 1 to 256"),
        ({"block_size": 512}, "block_size is 512: an integer from 1 to 256"),
        ({"block_size": "16"}, "block_size is '16'"),
        ({"kv_layout": "page"}, "kv_layout is 'page': contiguous, paged, hybrid or virtual"),
        ({"seed": 1.5}, "seed is 1.5: an integer"),
        ({"seed": True}, "seed is True"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: an integer from 1"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, "max_num_batched_tokens is 63 with max_num_seqs=64"),
        ({"max_model_len": 1}, "max_model_len is 1: an integer of at least 2"),
        ({"model": ""}, "model is ''"),
        ({"kv_memory": "4x"}, 'kv_memory is "4x"'),
        ({"kv_memory": 0}, "kv_memory is 0"),
        ({"kv_memory": "9" * 400}, "kv_memory is"),
        ({"kv_memory": 1.5}, "kv_memory is 1.5: a number of bytes, or text"),
        ({"kv_layout": "contiguous", "block_size": 16}, "block_size is 16 with kv_layout=contiguous"),
        ({"kv_layout": "contiguous", "max_preemptions": 4}, "max_preemptions is 4 with kv_layout=contiguous"),
        ({"contiguous_reserve": "request"}, "contiguous_reserve is request with kv_layout=paged"),
        ({"compaction": "pause"}, "compaction is pause with kv_layout=paged"),
        ({"kv_layout": "contiguous", "compaction": "pause"}, "compaction is pause with contiguous_reserve=max-len"),
        (
            {"kv_layout": "contiguous", "contiguous_reserve": "max-len", "compaction": "incremental"},
            "compaction is incremental with contiguous_reserve=max-len: its runs .* with request and grow only",
        ),
        ({"hybrid_threshold": 512}, "hybrid_threshold is 512 with kv_layout=paged"),
        ({"blok_size": 3}, r"blok_size is no setting; did you mean block_size\?$"),
    ],
)
def test_what_cannot_take_effect_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_mapping(EngineConfig, given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shutdown_timeout": float("inf")}, "shutdown_timeout is inf"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout is nan"),
        ({"port": 70000}, "port is 70000: an integer from 0 to 65535"),
        ({"max_request_bytes": "-1"}, "max_request_bytes is"),
    ],
)
def test_server_settings_are_checked_alike(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_mapping(ServerConfig, given)


def test_preemptions_are_capped_where_runs_grow() -> None:
    assert EngineConfig(kv_layout="contiguous", contiguous_reserve="grow", max_preemptions=2).max_preemptions == 2


def test_prefix_caching_is_on_unless_it_is_switched_off() -> None:
    assert EngineConfig().prefix_caching
    assert EngineConfig(kv_layout="hybrid").prefix_caching
    assert EngineConfig(kv_layout="contiguous").prefix_caching
    assert not EngineConfig(enable_prefix_caching=False).prefix_caching


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("512MiB", 2**29), ("4g", 2**32), ("1.5 KB", 1536), ("2GiB", 2**31), (7, 7), ("0.3k", 307)],
)
def test_bytes_are_read_in_powers_of_1024(text: str | int, count: int) -> None:
    assert parse_bytes("kv_memory", text) == count


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512 bytes"), (16384, "16 KiB"), (3 * 2**19, "1.5 MiB"), (2**32, "4 GiB"), (400000, "390.6 KiB")]
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "octavo.toml"
    path.write_text(text)
    return path


def test_toml_takes_dashes_or_underscores_and_none_as_text(tmp_path: Path) -> None:
    values = read_toml(toml(tmp_path, 'kv-layout = "hybrid"\nblock_size = 8\nkv_memory = "1GiB"\nseed = "none"\nport = 1\n'))
    assert values.pop("port") == 1
    config = from_mapping(EngineConfig, values)
    assert (config.kv_layout, config.block_size, config.kv_memory, config.seed) == ("hybrid", 8, 2**30, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kv_layot = 1", r"kv_layot is no setting; did you mean kv_layout\?"),
        ("port = 1\n[table]\na = 1", "table is no setting"),
        ("port = ", "is not valid TOML"),
        ("block_size = 1\nblock-size = 2", "block_size is set twice"),
    ],
)
def test_a_bad_toml_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_toml(toml(tmp_path, text))


def test_a_missing_toml_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
