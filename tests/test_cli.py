"""The command line: settings from options and file, text to the terminal, errors in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import main
from tests.checkpoints import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("cli")))


def test_generate_prints_the_continuation_and_what_took_effect(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kv-memory", "4MiB", "--threads", "1", "--kv-layout", "hybrid", "--hybrid-threshold", "64", "--verbose"]
    assert main(["generate", model, "-p", "hello", "--max-tokens", "5", *options]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert "kv_layout: hybrid" in err
    assert "64" in next(line for line in err.splitlines() if line.startswith("hybrid_threshold"))


def test_max_tokens_left_out_is_what_fits(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model, "-p", "hello", "--max-model-len", "32", "--threads", "1"]) == 0


def test_the_command_line_overrides_the_file(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "o.toml"
    file.write_text(f'model = "{model}"\nkv_layout = "contiguous"\nmax-model-len = 64\nthreads = 1\nkv_memory = "4MiB"\n')
    assert main(["generate", "-p", "a", "--config", str(file), "--kv-layout", "paged", "--max-tokens", "2", "--verbose"]) == 0
    err = capsys.readouterr().err
    assert "kv_layout: paged" in err
    assert "max_model_len: 64" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "no-such-model", "-p", "a"], "no-such-model"),
        (["generate", "-p", "a", "--block-size", "3"], "block_size is 3"),
        (["generate", "-p", "a", "--config", "/none.toml"], "/none.toml"),
        (["generate", "-p", "a", "--temperature", "-1"], "temperature is -1"),
    ],
)
def test_errors_are_one_line_and_status_1(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("octavo: ")
    assert words in err
    assert "Traceback" not in err


def test_a_reader_that_leaves_is_no_traceback(model: str) -> None:
    command = [sys.executable, "-m", "octavo", "generate", model, "-p", "hello", "--threads", "1", "--max-tokens", "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert b"Traceback" not in process.stderr.read()
    assert process.wait(60) == 1


def test_output_that_cannot_be_written_is_a_sentence(model: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "octavo", "generate", model, "-p", "hello", "--threads", "1", "--max-tokens", "3"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr
