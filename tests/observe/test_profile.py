"""--profile: torch's profiler around some steps, on the time line of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.observe.read import read_record
from octavo.runner.profiled import SKIPPED
from tests.checkpoints import tiny_llama

STEPS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("profile") / "model")


def run(model: Path, record: Path, tokens: int, **settings: Any) -> None:
    llm = LLM(model=model, record=record, threads=1, max_model_len=128, kv_memory="16MiB", **settings)
    llm.generate({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=tokens, ignore_eos=True), use_tqdm=False)
    llm.core.close()


def test_the_profile_s_steps_lie_where_the_record_has_them(model: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    run(model, record, 20, profile=STEPS, async_scheduling=False)
    assert main(["trace", str(record)]) == 0
    events = json.loads((tmp_path / "run.trace.json").read_bytes())["traceEvents"]
    profiled = {int(e["name"].split()[-1]): e for e in events if e["name"].startswith("octavo step ") and e["ph"] == "X"}
    assert sorted(profiled) == list(range(SKIPPED + 1, SKIPPED + STEPS + 1))
    shown = {e["args"]["step"]: e for e in events if e["ph"] == "X" and e["name"].startswith("step ")}
    for number, event in profiled.items():
        step = shown[number]
        apart = 1000.0  # microseconds that the two clocks may differ
        assert step["ts"] - apart <= event["ts"]
        assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + apart
    begin = min(event["ts"] for event in profiled.values())
    end = max(event["ts"] + event["dur"] for event in profiled.values())
    computing = [e for e in events if e.get("cat") == "cpu_op"]
    assert computing
    assert all(begin - 1 <= e["ts"] <= end + 1 for e in computing)


def test_what_was_profiled_of_too_short_a_run_is_saved(model: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    run(model, record, SKIPPED + 2, profile=1000)
    found = json.loads((tmp_path / "run.profile.json").read_bytes())
    names = [e["name"] for e in found["traceEvents"]]
    assert sum(name.startswith("octavo step ") for name in names) == 2


def test_the_torch_runner_s_record_tells_attention_and_gathering_apart(model: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    run(model, record, 3, attention="gather", runner="torch", dtype="float32")
    found = read_record(record)
    config = json.loads((model / "config.json").read_text())
    layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * heads * dim * 4
    assert [step.kv_read_bytes for step in found.steps] == [layers * token_bytes * context for context in (3, 4, 5)]
    decode = found.steps[1]
    assert decode.gather_bytes == decode.kv_read_bytes  # one sequence: nothing is padded
    assert 0 < decode.gather_s < decode.attention_s < decode.execute_s
    assert 0 < decode.attention_launches < decode.launches
    assert decode.busy_s is None
    assert found.header.kv_token_bytes == layers * token_bytes


def test_settings_without_effect_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profile is 5 without record: the profile is saved beside the record"):
        EngineConfig(profile=5)
    with pytest.raises(ConfigError, match="runner is native, but profile is 5, and torch's profiler sees the torch runner only"):
        LLM(model=model, runner="native", profile=5, record=tmp_path / "run.jsonl")
    with pytest.raises(ConfigError, match="it cannot be written"):
        LLM(model=model, record=tmp_path / "no" / "folder", kv_memory="16MiB")
