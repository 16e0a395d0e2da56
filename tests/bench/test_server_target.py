"""The HTTP client against a real socket: what it sends, how it reads what comes in any shape, and what becomes of faults."""

from __future__ import annotations

import json
import socket

import pytest

from octavo.bench.client.openai import OpenAITarget, find_model, parse_url
from octavo.bench.clientload import ClientLoad
from octavo.bench.interrupt import Interrupt
from octavo.bench.load import Load
from octavo.bench.metrics import Spread, measure
from octavo.bench.record import RequestRecord
from octavo.bench.run import Run, run_server
from octavo.bench.workload import BenchRequest, Segment
from octavo.errors import ConfigError, TargetError
from tests.bench.fake_server import CLOSE, HEAD, LAST, RESET, WAIT, FakeServer, Script, answer, chunk, serving, whole
from tests.bench.test_answer import DONE, chat, event, text, usage


def send(
    url: str,
    count: int = 1,
    *,
    endpoint: str = "completions",
    load: Load | None = None,
    interrupt: Interrupt | None = None,
    **options: object,
) -> Run:
    """``count`` requests with the prompt [1, 2, 3], by default one after the other and without warm-up."""
    address = parse_url(url, endpoint)
    target = OpenAITarget(address, "fake", lambda request: [1, 2, 3], timeout_s=options.pop("timeout_s", 20.0), **options)  # type: ignore[arg-type]
    requests = [BenchRequest(i, (Segment(i, 3),), 2) for i in range(count)]
    return run_server(address, target, requests, load or Load(concurrency=1, warmup=0), interrupt=interrupt, show=False)


def one(script: Script, **options: object) -> RequestRecord:
    """The record of the only request, answered so."""
    with serving(lambda i, asked: script) as server:
        (record,) = send(server.url, **options).records  # type: ignore[arg-type]
    return record


def test_a_request_says_what_the_workload_asks_for() -> None:
    with serving(lambda i, asked: answer(2)) as server:
        run = send(server.url, 2, extra_body={"top_k": 3, "ignore_eos": None})
    first, second = server.asked
    assert first.path == "/v1/completions"
    assert first.body == {
        "model": "fake", "prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "top_k": 3,
    }  # fmt: skip
    assert first.headers["content-type"] == "application/json"
    assert first.headers["x-request-id"].endswith("-0")
    assert second.headers["x-request-id"].endswith("-1")
    assert first.connection == second.connection  # kept for the next one
    assert [r.count for r in run.records] == [2, 2]


def test_chat_and_the_key() -> None:
    with serving(lambda i, asked: [HEAD, chunk(event(chat(content="a")) + event(chat(finish="stop"))), LAST]) as server:
        address = parse_url(server.url, "chat", "secret")
        target = OpenAITarget(address, "fake", lambda request: "hello", timeout_s=20.0)
        run = run_server(address, target, [BenchRequest(0, (Segment(0, 3),), 2)], Load(warmup=0), show=False)
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].body["messages"] == [{"role": "user", "content": "hello"}]
    assert server.asked[0].body["ignore_eos"] is True
    assert server.asked[0].headers["authorization"] == "Bearer secret"
    assert run.records[0].completed
    assert "secret" not in repr(address)


def test_no_token_is_seen_before_it_was_written() -> None:
    with serving(lambda i, asked: answer(3, first_s=0.06, gap_s=0.03)) as server:
        (record,) = send(server.url).records
    written = server.written[0][1:4]  # the head is the first
    assert all(came >= wrote for wrote, came in zip(written, record.moments, strict=True))
    assert record.ttft is not None
    assert record.e2e is not None
    assert record.ttft >= 0.06
    assert record.e2e >= 0.12


def test_bytes_in_any_pieces_are_one_answer() -> None:
    data = HEAD + b"".join(step for step in answer(3) if isinstance(step, bytes) and step != HEAD)
    assert one([data[i : i + 7] for i in range(0, len(data), 7)]).count == 3


def test_an_answer_may_end_with_the_connection() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    record = one([head, event(text("a")), event(text("b", "stop")), event(DONE), CLOSE])
    assert (record.error, record.count) == (None, 2)


def test_an_answer_in_one_piece_is_taken_as_such() -> None:
    body = json.dumps(usage(3, 2) | {"choices": [{"text": "ab", "finish_reason": "length"}]})
    record = one([whole("200 OK", body.encode())])
    assert (record.error, record.streamed, record.count, len(record.moments)) == (None, False, 2, 1)


def test_a_status_in_between_is_passed_over() -> None:
    script = answer(2)
    assert one([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", *script]).completed


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ([whole("503 Service Unavailable", b'{"error": {"message": "busy"}}')], "http_503", "busy"),
        ([whole("404 Not Found", b"")], "http_404", "404"),
        ([b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"], "http_307", "307"),
        ([CLOSE], "disconnect", "before the answer"),
        ([RESET], "disconnect", "before the answer"),
        ([HEAD, chunk(event(text("a"))), CLOSE], "disconnect", "in the middle"),
        ([HEAD, chunk(event(text("a"))), LAST], "disconnect", "without a finish_reason"),
        ([HEAD, b"5\r\nda"], "timeout", "longer than 0.3 s"),
        ([WAIT], "timeout", "longer than 0.3 s"),
        ([b"what is this\r\n\r\n", CLOSE], "malformed", "no HTTP"),
        ([HEAD, chunk(b"data: {nonsense\n\n"), 0.05, LAST], "malformed", "nonsense"),
        ([HEAD, chunk(event(text("a")) + event({"error": "boom"})), LAST], "server_error", "boom"),
        ([HEAD, chunk(event(text("", "stop")) + event(DONE)), LAST], "no_output", "stop"),
    ],
)
def test_faults_are_told_by_kind_and_the_next_request_is_answered(script: Script, error: str, words: str) -> None:
    with serving(lambda i, asked: script if i == 0 else answer(2)) as server:
        timeout = 0.3 if error == "timeout" else 20.0
        failed, fine = send(server.url, 2, timeout_s=timeout).records
    assert failed.error == error
    assert words in failed.message
    assert fine.completed


def test_a_kept_connection_that_the_server_closes_is_no_failure() -> None:
    with serving(lambda i, asked: [*answer(2), CLOSE]) as server:
        run = send(server.url, 6)
    assert [r.error for r in run.records] == [None] * 6
    assert len({asked.connection for asked in server.asked}) == 6


def test_a_server_that_closes_every_connection_unanswered_is_not_asked_for_ever() -> None:
    with serving(lambda i, asked: answer(1) if i == 0 else [CLOSE]) as server:
        run = send(server.url, 2)
    assert [r.error for r in run.records] == [None, "disconnect"]
    assert len(server.asked) == 3  # the second one once again on a new connection, and no more


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        (record,) = send(url).records
    assert record.error == "connect"


def test_as_many_are_under_way_as_the_load_says() -> None:
    with serving(lambda i, asked: answer(1, first_s=0.1)) as server:
        run = send(server.url, 9, load=Load(concurrency=3, warmup=0))
    assert len({asked.connection for asked in server.asked}) == 3
    assert measure(run.records).completed == 9


def test_warmup_is_sent_before_and_left_out() -> None:
    with serving(lambda i, asked: answer(2)) as server:
        run = send(server.url, 3, load=Load(concurrency=1, warmup=2))
    assert [asked.headers["x-request-id"].rpartition("-bench-")[2].partition("-")[2] for asked in server.asked] == [
        "-1",
        "-2",
        "0",
        "1",
        "2",
    ]
    assert [record.index for record in run.records] == [0, 1, 2]


def test_a_server_that_answers_no_warmup_request_is_not_measured() -> None:
    with serving(lambda i, asked: [whole("404 Not Found", b'{"error": {"message": "no such model"}}')]) as server:
        with pytest.raises(TargetError, match="none of 2 warm-up requests: http_404: HTTP 404: no such model"):
            send(server.url, 5, load=Load(warmup=2))
        assert len(server.asked) == 2


def test_a_request_that_is_given_up_leaves_the_server_at_once() -> None:
    left = []

    def script(i: int, asked: object) -> Script:
        left.append(server.left)
        return [HEAD, WAIT] if i == 0 else answer(2, first_s=0.2)

    with serving(script) as server:
        run = send(server.url, 3, timeout_s=1.0)
    assert [r.error for r in run.records] == ["timeout", None, None]
    assert left[2] == 1  # when the third one came


def test_an_interruption_ends_the_run_and_keeps_what_there_is() -> None:
    interrupt = Interrupt()

    def script(i: int, asked: object) -> Script:
        if i < 2:
            return answer(2)
        interrupt.wanted = True
        interrupt.on_interrupt()
        return [HEAD, chunk(event(text("a"))), WAIT]

    with serving(script) as server:
        run = send(server.url, 5, interrupt=interrupt)
    m = measure(run.records, run.end)
    assert run.end is not None
    assert (m.completed, m.unfinished) == (2, 1)


def test_what_the_servers_metrics_tell_is_that_of_the_run() -> None:
    with serving(lambda i, asked: script_after_change(server, i)) as server:
        server.metrics = metrics_page(100, 10, 7, 2)
        run = send(server.url, 2)
    assert run.kv is not None
    assert (run.kv.reserved, run.kv.scope) == (400, "run")
    assert (run.looked_up, run.cached, run.preemptions) == (90, 33, 3)


def script_after_change(server: FakeServer, i: int) -> Script:
    if i == 1:
        server.metrics = metrics_page(400, 100, 40, 5)
    return answer(2)


def metrics_page(reserved: int, queries: int, hits: int, preemptions: int) -> bytes:
    states = "".join(
        f'octavo:kv_cache_peak_bytes{{model_name="m",state="{s}"}} {reserved}\n' for s in ("reserved", "used", "wasted")
    )
    counters = {"prefix_cache_queries": queries, "prefix_cache_hits": hits, "num_preemptions": preemptions}
    return (
        f"# TYPE octavo:kv_cache_peak_bytes gauge\n{states}"
        + "".join(f'# TYPE vllm:{n}_total counter\nvllm:{n}_total{{engine="0"}} {v}\n' for n, v in counters.items())
    ).encode()


def test_the_model_is_the_servers_unless_named() -> None:
    with serving(lambda i, asked: answer(1)) as server:
        address = parse_url(server.url, None)
        assert find_model(address, None).id == "fake"
        assert find_model(address, None).max_model_len == 512
        assert find_model(address, "other").id == "other"
        server.models = b'{"data": []}'
        with pytest.raises(TargetError, match="--served-model"):
            find_model(address, None)
        server.models = b""  # 404
        assert find_model(address, "other").max_model_len is None
        with pytest.raises(TargetError, match="HTTP 404"):
            find_model(address, None)
    with pytest.raises(TargetError, match="does not answer"):
        find_model(address, "other")


@pytest.mark.parametrize(
    ("text", "base", "endpoint"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", "completions"),
        ("127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "completions"),
        ("https://h/api/v1/", "https://h/api/v1", "completions"),
        ("http://h/v1/chat/completions", "http://h/v1", "chat"),
        ("http://h/v1/completions", "http://h/v1", "completions"),
    ],
)
def test_addresses_as_people_write_them(text: str, base: str, endpoint: str) -> None:
    address = parse_url(text, None)
    assert (address.base, address.endpoint) == (base, endpoint)


@pytest.mark.parametrize("text", ["ftp://h", "http://", "http://h:99999", "http://h/v1?x=1", "http://[::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="url is"):
        parse_url(text, None)


def test_an_address_of_one_endpoint_with_another_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave one of the two out"):
        parse_url("http://h/v1/chat/completions", "completions")


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (ClientLoad(0.9, 0.0, None, False), "90% of a core"),
        (ClientLoad(0.1, 0.3, None, False), "waited for a free CPU 30% of the time"),
        (ClientLoad(0.1, 0.0, Spread(0.001, 0.0, 0.0, 0.02, 0.03), False), "20 ms late"),
    ],
)
def test_a_client_that_is_the_bottleneck_says_so(load: ClientLoad, words: str) -> None:
    warning = load.warning()
    assert warning is not None
    assert words in warning


def test_a_client_that_is_not_keeps_quiet() -> None:
    assert ClientLoad(0.3, 0.02, Spread(0.0, 0.0, 0.0, 0.002, 0.1), False).warning() is None
    assert ClientLoad(None, None, None, False).warning() is None
    assert ClientLoad(0.9, None, None, True).warning() is None


def test_lateness_and_shares_are_measured() -> None:
    with serving(lambda i, asked: answer(1)) as server:
        run = send(server.url, 3, load=Load(rate=10.0, warmup=0))
    assert run.client.send_late_s is not None
    assert run.client.send_late_s.p50 >= 0
    assert run.client.cpu_share is not None
    assert 0 < run.client.cpu_share < 1.5
