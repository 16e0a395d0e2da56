"""``octavo ladder`` as a user calls it."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from octavo.cli import main
from octavo.ladder import command
from octavo.ladder.arguments import add_ladder
from octavo.ladder.causes import CAUSES, Arm
from octavo.ladder.experiment import Load
from octavo.native import isa
from tests.checkpoints import tiny_llama

NUMBER = {"type": "number"}
FACTOR = {"type": "number", "exclusiveMinimum": 0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "total_factor", "shares", "runs"],
    "properties": {
        "schema": {"const": 1},
        "total_factor": FACTOR,
        "shares": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["cause", "factor", "low", "high"],
                "properties": {
                    "cause": {"enum": ["attention", "eager", "block_size", "block_management", "overlap"]},
                    "factor": FACTOR,
                    "low": {"type": ["number", "null"]},
                    "high": {"type": ["number", "null"]},
                },
            },
        },
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": [
                    "removed", "itl_mean_ms", "launches_per_step", "attention_launches_per_step", "device_busy", "kv_bytes"
                ],
                "properties": {
                    "removed": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                    "itl_mean_ms": FACTOR,
                    "launches_per_step": {"type": "integer", "minimum": 1},
                    "attention_launches_per_step": {"type": "integer", "minimum": 0},
                    "device_busy": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
                    "kv_bytes": {"type": "integer", "minimum": 1},
                },
            },
        },
    },
}  # fmt: skip
LOAD = ["--batch", "2", "--context", "24", "--steps", "4", "--compact-every", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("ladder"), dtype="bfloat16"))


@pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
def test_the_result(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ladder.json"
    assert main(["ladder", model, *LOAD, "--repeat", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    jsonschema.validate(found, SCHEMA)
    product = 1.0
    for share in found["shares"]:
        product *= share["factor"]
        assert share["low"] <= share["high"]
    assert product == pytest.approx(found["total_factor"])
    assert len({tuple(run["removed"]) for run in found["runs"]}) == 33
    assert found["runs"][0]["removed"] == []
    assert found["runs"][-1]["removed"][-1] == "indirection"
    assert found["runs"][0]["kv_bytes"] < found["runs"][-1]["kv_bytes"]
    out = capsys.readouterr().out
    for words in (
        "2 sequences of 6 to 24 tokens",
        "2 rounds of 33 configurations",
        "1 x 2 sequences x 2 layers",
        "best paged",
        "contiguous: indirection itself, apart",
        "All causes together: x",
        "claimed is a factor of 10",
        "an extrapolation",
        "All 33 configurations computed the same tokens.",
    ):
        assert words in out


def test_the_torch_runner_has_four_causes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", model, *LOAD, "--repeat", "1", "--runner", "torch", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert [share["cause"] for share in found["shares"]] == ["attention", "block_size", "block_management", "overlap"]
    assert all(share["low"] is None for share in found["shares"])
    assert len(found["runs"]) == 17
    assert "that cause cannot be removed here" in err
    assert "17 configurations computed the same tokens" in err
    assert "There was one round only" in err


def test_what_is_not_given_fits_what_is() -> None:
    def asked(*options: str, most: int = 8192) -> tuple[Load, int]:
        parser = argparse.ArgumentParser()
        add_ladder(parser)
        return command._asked(parser.parse_args(options), most)

    assert asked() == (Load(16, 4096, 32, 16), 5)
    assert asked("--quick") == (Load(8, 2048, 16, 16), 3)
    assert asked("--quick", "--batch", "2", "--repeat", "1") == (Load(2, 2048, 16, 16), 1)
    assert asked("--compact-every", "10")[0] == Load(16, 4096, 30, 10)
    assert asked("--compact-every", "100")[0] == Load(16, 4096, 100, 100)
    assert asked(most=1024)[0] == Load(16, 1024 - 4 - 32 - 4, 32, 16)


def test_what_cannot_be_is_said(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", model, "--repeat", "0"]) == 1
    assert "repeat is 0: at least 1 is accepted" in capsys.readouterr().err
    assert main(["ladder", model, "--steps", "10"]) == 1
    assert "steps is 10 with compact_every=16" in capsys.readouterr().err
    assert main(["ladder", model, *LOAD, "--json", str(tmp_path / "none" / "out.json")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_quick_shortens_contexts_where_the_machine_is_slow(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes a second for each 1000 tokens of the longest context: 39 runs, twice, within 100 seconds are 1280 at most."""
    clock = [0.0]

    class Slow:
        causes = CAUSES

        def measure(self, arm: Arm, load: Load) -> None:
            clock[0] += load.context / 1000

    monkeypatch.setattr(command, "QUICK_S", 100.0)
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    load = Load(batch=8, context=4096, steps=4, every=4)
    assert command._warmed(Slow(), load, True) == replace(load, context=1024)
    assert command._warmed(Slow(), load, False) == load
    clock[0] = 0.0
    monkeypatch.setattr(command, "QUICK_S", 0.0)
    assert command._warmed(Slow(), load, True).context == command.SHORT
