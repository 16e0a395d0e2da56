"""``octavo capture``: the proxy passes everything on, and the trace it leaves has lengths and sharing, and no text."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.bench.capture.prefix_hash import PrefixHasher
from octavo.bench.capture.prompt import PromptReader
from octavo.bench.capture.writer import CaptureWriter
from octavo.bench.sharing import shared_tokens
from octavo.bench.traces import read_trace
from octavo.bench.traces.source import DamagedError
from octavo.cli import main
from octavo.errors import WorkloadError
from octavo.models.load import open_checkpoint
from tests.bench.upstream import Bench, capturing, plain, stream

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USAGE = {"prompt_tokens": 12, "completion_tokens": 5}


def answered(usage: dict[str, Any] | None = USAGE, text: str = "answer") -> bytes:
    return json.dumps({"choices": [{"text": text}], "usage": usage}).encode()


def chunk(text: str) -> str:
    return json.dumps({"choices": [{"text": text}]})


def drive(folder: Path, steps: Callable[[Bench], Awaitable[None]], reader: PromptReader | None = None) -> list[dict[str, Any]]:
    """Run ``steps`` against a capturing proxy; the rows that it left."""

    async def run() -> Path:
        async with capturing(folder, reader) as bench:
            await steps(bench)
            return bench.file

    lines = asyncio.run(run()).read_text().splitlines()
    assert json.loads(lines[0]) == {"octavo_capture": 1}
    return [json.loads(line) for line in lines[1:]]


# ---- passing on


def test_a_request_reaches_the_server_as_it_was_sent_and_its_answer_the_client(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        headers = (("content-type", "text/odd"), ("x-answer", "a"), ("set-cookie", "one=1"), ("set-cookie", "two=2"))
        bench.upstream.answer = plain(b"\x00\xff", status=418, headers=headers)
        for method in ("GET", "PUT", "DELETE", "PATCH", "POST", "OPTIONS"):
            content = b"\x00body\xff" if method in ("PUT", "PATCH", "POST") else None
            answer = await bench.client.request(
                method, "/odd%2Fpath//x?a=b%20c&a=d", content=content, headers={"x-mine": "yes", "user-agent": "me"}
            )
            assert (answer.status_code, answer.content) == (418, b"\x00\xff")
            assert answer.headers["content-type"] == "text/odd"
            assert answer.headers.get_list("set-cookie") == ["one=1", "two=2"]
            assert len(answer.headers.get_list("date")) == 1
            seen = bench.upstream.seen[-1]
            assert (seen.method, seen.target, seen.body) == (method, "/odd%2Fpath//x?a=b%20c&a=d", content or b"")
            given = dict(seen.headers)
            assert (given["x-mine"], given["user-agent"]) == ("yes", "me")
            assert given["accept-encoding"] == bench.client.headers["accept-encoding"]

    assert drive(tmp_path, steps) == []


def test_what_concerns_one_connection_is_not_passed_on(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = plain(b"", headers=(("keep-alive", "timeout=9"), ("x-kept", "1")))
        answer = await bench.client.get("/", headers={"connection": "x-secret, keep-alive", "x-secret": "1", "te": "trailers"})
        seen = dict(bench.upstream.seen[0].headers)
        assert not {"x-secret", "te"} & set(seen)
        assert seen["host"] != bench.client.base_url.netloc.decode()
        assert "keep-alive" not in answer.headers
        assert answer.headers["x-kept"] == "1"

    drive(tmp_path, steps)


def test_a_head_a_redirect_and_a_compressed_answer_are_left_as_they_are(tmp_path: Path) -> None:
    import gzip

    packed = gzip.compress(b"text" * 100)

    async def steps(bench: Bench) -> None:
        bench.upstream.answer = plain(packed, headers=(("content-encoding", "gzip"), ("content-length", str(len(packed)))))
        async with bench.client.stream("GET", "/packed") as answer:
            assert b"".join([piece async for piece in answer.aiter_raw()]) == packed
        answer = await bench.client.head("/packed")
        assert answer.headers["content-length"] == str(len(packed))
        bench.upstream.answer = plain(b"", status=307, headers=(("location", "/elsewhere"),))
        answer = await bench.client.post("/here", content=b"x")
        assert (answer.status_code, answer.headers["location"]) == (307, "/elsewhere")

    drive(tmp_path, steps)


def test_a_body_of_unknown_length_and_a_large_one_pass(tmp_path: Path) -> None:
    async def pieces() -> Any:
        for _ in range(10):
            yield b"x" * 100_000

    async def steps(bench: Bench) -> None:
        await bench.client.post("/upload", content=pieces())
        assert len(bench.upstream.seen[0].body) == 1_000_000

    drive(tmp_path, steps)


def test_a_piece_of_a_stream_reaches_the_client_before_the_next_is_made(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        gate = asyncio.Event()
        bench.upstream.answer = stream(chunk("one"), chunk("two"), "[DONE]", gate=gate)
        async with bench.client.stream("POST", COMPLETIONS, json={"prompt": "x", "stream": True}) as answer:
            pieces = answer.aiter_text()
            assert await anext(pieces) == f"data: {chunk('one')}\n\n"
            gate.set()
            assert "".join([piece async for piece in pieces]) == f"data: {chunk('two')}\n\ndata: [DONE]\n\n"

    (row,) = drive(tmp_path, steps)
    assert row["output_tokens"] == 2


def test_a_client_that_leaves_is_gone_for_the_server_and_its_row_says_so(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        never = asyncio.Event()
        bench.upstream.answer = stream(chunk("one"), "never", gate=never)
        async with bench.client.stream("POST", COMPLETIONS, json={"prompt": "x", "stream": True}) as answer:
            await anext(answer.aiter_text())
        await asyncio.wait_for(bench.upstream.seen[0].disconnected.wait(), 10)

    (row,) = drive(tmp_path, steps)
    assert row["aborted"] is True
    assert row["output_tokens"] == 1


def test_a_client_that_leaves_before_anything_came_is_gone_too(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        async def silent(send: Any) -> None:
            await asyncio.Event().wait()

        bench.upstream.answer = silent
        waiting = asyncio.create_task(bench.client.post(COMPLETIONS, json={"prompt": "x"}))
        while not bench.upstream.seen:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(bench.upstream.seen[0].disconnected.wait(), 10)

    assert drive(tmp_path, steps) == []


def test_an_answer_that_the_server_breaks_off_is_broken_off_for_the_client(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = stream(chunk("one"), chunk("two"), breaks=True)
        with pytest.raises(httpx.RemoteProtocolError):
            await bench.client.post(COMPLETIONS, json={"prompt": "x", "stream": True})

    (row,) = drive(tmp_path, steps)
    assert (row["aborted"], row["output_tokens"]) == (True, 2)


def test_a_server_that_is_gone_is_a_502_with_a_sentence(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.client.post(COMPLETIONS, json={"prompt": "x"})
        await bench.stop_upstream()
        answer = await bench.client.post(COMPLETIONS, json={"prompt": "x"})
        assert answer.status_code == 502
        assert "does not answer" in answer.json()["error"]["message"]

    assert len(drive(tmp_path, steps)) == 1


# ---- recording


def test_a_row_has_the_server_s_lengths_and_the_arrival(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = plain(answered())
        await bench.client.post(COMPLETIONS, json={"prompt": "the secret prompt", "max_tokens": 5})
        await asyncio.sleep(0.05)
        await bench.client.post(COMPLETIONS, json={"prompt": [5, 6, 7, 8, 9], "max_tokens": 5})
        assert dict(bench.upstream.seen[0].headers)["accept-encoding"] == "identity"  # a compressed answer cannot be counted

    one, other = drive(tmp_path, steps)
    assert (one["prompt_tokens"], one["output_tokens"], one["prompt_bytes"], one["exact"]) == (12, 5, 17, False)
    assert (other["prompt_tokens"], other["output_tokens"], other["prompt_bytes"], other["exact"]) == (12, 5, 20, True)
    assert "estimated" not in one
    assert 0.05 <= other["arrival_s"] - one["arrival_s"] < 5
    assert len(one["hashes"]) == len(other["hashes"]) == 16


def test_no_text_and_no_token_ids_are_written(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = stream(chunk("hidden answer"), json.dumps({"choices": [], "usage": USAGE}), "[DONE]")
        await bench.client.post(
            CHAT,
            json={
                "model": "secret-model",
                "messages": [{"role": "user", "content": "hidden prompt"}],
                "user": "name",
                "stream": True,
            },
            headers={"authorization": "Bearer key"},
        )

    (row,) = drive(tmp_path, steps)
    assert set(row) == {"arrival_s", "prompt_tokens", "output_tokens", "prompt_bytes", "exact", "hashes"}
    assert re.fullmatch("[0-9a-f]+", row["hashes"])
    assert all(isinstance(row[name], (int, float)) for name in set(row) - {"hashes"})


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ([chunk(""), chunk("a"), chunk("b"), chunk("c"), "[DONE]"], 3),  # a token for each piece with text
        ([json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), chunk("a"), "{broken", "[DONE]"], 1),
    ],
)
def test_without_the_server_s_count_lengths_are_estimated_and_marked(tmp_path: Path, answer: list[str], output: int) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = stream(*answer)
        await bench.client.post(COMPLETIONS, json={"prompt": "x" * 40, "stream": True})

    (row,) = drive(tmp_path, steps)
    assert (row["prompt_tokens"], row["output_tokens"]) == (10, output)
    assert row["estimated"] == ["prompt_tokens", "output_tokens"]


def test_a_tokenizer_counts_what_the_server_does_not(tmp_path: Path) -> None:
    checkpoint = open_checkpoint("smollm2-135m")
    tokenizer, template = checkpoint.tokenizer, checkpoint.chat_template
    assert template is not None
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]

    async def steps(bench: Bench) -> None:
        bench.upstream.answer = stream(chunk("The capital of"), chunk(" France is Paris."), "[DONE]")
        await bench.client.post(CHAT, json={"messages": messages, "stream": True})

    (row,) = drive(tmp_path, steps, PromptReader(tokenizer, template))
    seen = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    prompt = tokenizer.encode(template.render(seen, add_generation_prompt=True), add_special_tokens=False)
    assert (row["prompt_tokens"], row["prompt_bytes"], row["exact"]) == (len(prompt), 4 * len(prompt), True)
    assert row["output_tokens"] == len(tokenizer.encode("The capital of France is Paris."))
    assert "estimated" not in row


def test_several_prompts_and_several_answers_are_a_row_each(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = plain(answered({"prompt_tokens": 30, "completion_tokens": 60}))
        await bench.client.post(COMPLETIONS, json={"prompt": ["x" * 40, "y" * 80], "n": 3})

    rows = drive(tmp_path, steps)
    assert [row["prompt_tokens"] for row in rows] == [10, 10, 10, 20, 20, 20]
    assert [row["output_tokens"] for row in rows] == [10] * 6


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"prompt": 5}', b'{"messages": "x"}', b'{"prompt": "x", "n": 0}', b"[" * 10_000]
)
def test_what_is_no_request_passes_and_leaves_no_row(tmp_path: Path, body: bytes) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = plain(answered())
        assert (await bench.client.post(COMPLETIONS, content=body)).status_code == 200

    assert drive(tmp_path, steps) == []


def test_what_the_server_refuses_leaves_no_row(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        bench.upstream.answer = plain(b'{"error": {"message": "no"}}', status=400)
        assert (await bench.client.post(COMPLETIONS, json={"prompt": "x"})).json() == {"error": {"message": "no"}}

    assert drive(tmp_path, steps) == []


# ---- hashes and sharing


def test_hashes_agree_as_far_as_prompts_do_and_not_beyond() -> None:
    hasher = PrefixHasher()
    one, other = hasher.hashes(b"a" * 32 + b"b" * 16), hasher.hashes(b"a" * 32 + b"c" * 20)
    assert (len(one), len(other)) == (3 * 8, 4 * 8)
    assert one[:16] == other[:16]
    assert one[16:24] != other[16:24]
    assert hasher.hashes(b"z" + b"a" * 31)[8:16] != one[8:16]  # a block means itself and all before it
    assert hasher.hashes(b"") == ""


def test_each_capture_has_a_salt_of_its_own() -> None:
    assert PrefixHasher().hashes(b"the same prompt") != PrefixHasher().hashes(b"the same prompt")


def test_a_longer_conversation_begins_with_a_shorter_one() -> None:
    reader = PromptReader()
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "long question"},
        {"role": "assistant", "content": "a"},
    ]
    one, other = (reader.read({"messages": turns[:count]})[0].data for count in (2, 3))
    assert other.startswith(one)
    other = reader.read({"messages": [turns[0], {"role": "user", "content": "long quest"}]})[0].data
    assert one.startswith(other)


def test_the_trace_shares_what_the_traffic_shared(tmp_path: Path) -> None:
    system, document = list(range(100, 164)), list(range(300, 400))

    async def steps(bench: Bench) -> None:
        for i, shared in enumerate([system, document, system, document, system]):
            prompt = [*shared, *range(1000 * (i + 1), 1000 * (i + 1) + 10)]
            bench.upstream.answer = plain(answered({"prompt_tokens": len(prompt), "completion_tokens": 1}))
            await bench.client.post(COMPLETIONS, json={"prompt": prompt})

    drive(tmp_path, steps)
    workload = read_trace(tmp_path / "capture.jsonl")
    assert [request.prompt_tokens for request in workload.requests] == [74, 110, 74, 110, 74]
    assert shared_tokens(workload.requests) == [0, 0, 64, 100, 64]


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], [1, "a"], ["a", [1]], [-1], [2**31], [True], {"a": 1}])
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    if prompt == ["a", [1]]:
        assert len(PromptReader().read({"prompt": prompt})) == 2  # odd, but each of them is one
        return
    with pytest.raises(DamagedError, match="prompt is"):
        PromptReader().read({"prompt": prompt})


def test_a_capture_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "there.jsonl"
    file.write_text("precious")
    with pytest.raises(WorkloadError, match="exists already"):
        CaptureWriter(file)
    assert file.read_text() == "precious"
    with pytest.raises(WorkloadError, match="cannot be written"):
        CaptureWriter(tmp_path / "nowhere" / "file")


# ---- logs


Convert = Callable[..., tuple[int, str, list[dict[str, Any]]]]


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    """Status, what was printed, and the rows of ``octavo capture --log`` with these lines."""

    def run(*lines: Any) -> tuple[int, str, list[dict[str, Any]]]:
        log, output = tmp_path / "log.jsonl", tmp_path / "trace.jsonl"
        log.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        status = main(["capture", "--log", str(log), "-o", str(output)])
        rows = [json.loads(line) for line in output.read_text().splitlines()[1:]] if output.exists() else []
        return status, "".join(capsys.readouterr()), rows

    return run


def test_a_log_is_converted_whatever_shape_its_lines_have(convert: Convert) -> None:
    body = {"prompt": "x" * 40, "max_tokens": 7}
    status, printed, rows = convert(
        {"timestamp": 1700000000.5, **body, "usage": USAGE},
        {"time": "2023-11-14T22:13:22Z", "body": body, "response": {"choices": [{"text": "y" * 20}], "usage": USAGE}},
        {"ts": 1700000003000, "request": body, "response": {"status_code": 200, "body": {"choices": [{"text": "y" * 20}]}}},
        {"timestamp": "1700000004.0", "body": {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9}},
        {"timestamp": 1700000005, **body, "response": "z" * 12},
    )
    assert status == 0, printed
    assert [row["arrival_s"] for row in rows] == [0, 1.5, 2.5, 3.5, 4.5]
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in rows] == [(12, 5), (12, 5), (10, 5), (4, 9), (10, 3)]
    assert [row.get("estimated", []) for row in rows[:2]] == [[], []]
    assert all(row["estimated"] == ["prompt_tokens", "output_tokens"] for row in rows[2:])
    assert "5 requests written" in printed


def test_lines_of_a_log_that_cannot_be_used_are_counted(convert: Convert) -> None:
    status, printed, rows = convert(
        {"timestamp": 1, "prompt": "x", "max_tokens": 3},
        "{broken",
        {"timestamp": 2, "prompt": "x"},  # nothing says how long its output was
        {"timestamp": "yesterday", "prompt": "x", "max_tokens": 3},
        {"prompt": "x", "max_tokens": 3},  # no time, in a log with times
        {"timestamp": 3, "prompt": "x", "max_tokens": 3, "response": {"error": {"message": "overloaded"}}},
    )
    assert status == 0, printed
    assert len(rows) == 1
    assert "5 requests left out: the first of them in line 2" in printed


def test_a_log_without_times_has_none_afterwards(convert: Convert) -> None:
    _, _, rows = convert(*[{"custom_id": str(i), "body": {"prompt": "x", "max_tokens": 3}} for i in range(2)])
    assert [row["arrival_s"] for row in rows] == [None, None]


def test_a_log_that_is_none_is_refused_and_leaves_no_file(convert: Convert, tmp_path: Path) -> None:
    status, printed, _ = convert("time,prompt", "1,x")
    assert status == 1
    assert "has no request that can be used: line 1: it is no valid JSON" in printed
    assert not (tmp_path / "trace.jsonl").exists()


# ---- the command


def test_the_command_serves_until_it_is_interrupted_and_says_what_it_wrote(tmp_path: Path) -> None:
    output = tmp_path / "capture.jsonl"
    command = [sys.executable, "-m", "octavo", "capture", "--upstream", "http://127.0.0.1:9", "--port", "0", "-o", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.match(r"octavo capture passes (http://\S+) on to http://127.0.0.1:9 and writes ", line)
    assert found, line
    assert httpx.post(found[1] + COMPLETIONS, json={"prompt": "x"}, trust_env=False).status_code == 502
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert rest.startswith(
        f"0 requests written to {output}, 0 of them with an estimated length.\n1 request left out: not answered."
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--upstream", "ftp://there"], "upstream is 'ftp://there'"),
        (["--upstream", "http://127.0.0.1:9", "--port", "70000"], "port is 70000"),
        (["--log", "x", "--port", "8001"], "port is 8001 with log=x"),
        (["--upstream", "http://127.0.0.1:9", "--tokenizer", "nothing"], "'nothing' is no model"),
    ],
)
def test_options_that_cannot_take_effect_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["capture", *options, "-o", str(tmp_path / "capture.jsonl")]) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "capture.jsonl").exists()
