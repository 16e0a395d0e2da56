"""A server's life: starting, clients that leave or dawdle, the engine's death, finishing in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import fake_process as fake
from tests.server.running import LIMIT_S, Running, alive, children, events, launch, running, until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HALF = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
LONG = {"prompt": "abc", "max_tokens": 1000}  # three seconds or more, if nobody leaves


def post(server: Running, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + COMPLETIONS, json=body, timeout=LIMIT_S)


def stream(server: Running, body: dict[str, Any], started: threading.Event) -> list[Any]:
    """All events of a stream."""
    with httpx.stream("POST", server.url + COMPLETIONS, json={**body, "stream": True}, timeout=LIMIT_S) as answer:
        found = []
        for one in events(answer.iter_lines()):
            found.append(one)
            started.set()
    return found


def raw_connection(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


def received(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def raw_request(server: Running, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and nothing was read yet."""
    connection = raw_connection(server)
    data = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


# ---- small answers


def test_health_and_version(server: Running) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    assert set(server.http.get("/version").json()) == {"version"}


def test_the_start_prints_the_effective_configuration_and_the_address(server: Running) -> None:
    assert any(line.split() == ["core", "fake"] for line in server.lines)
    assert "serves tiny at http://127.0.0.1:" in server.output


def test_the_specification_describes_what_is_served(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if "$ref" in node else []
            return own + [ref for value in node.values() for ref in references(value)]
        return [ref for value in node for ref in references(value)] if isinstance(node, list) else []

    assert {ref.rpartition("/")[2] for ref in references(document)} == set(schemas)
    for path, operations in document["paths"].items():
        for method in operations:
            answer = server.http.request(method, path.replace("{model}", "tiny"), json={} if method == "post" else None)
            assert str(answer.status_code) in operations[method]["responses"]
    request = schemas["ChatRequest"]
    assert request["required"] == ["messages"]
    assert {"type": "number"} in request["properties"]["temperature"]["anyOf"]
    answer = server.http.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}).json()
    assert set(answer) == set(schemas["ChatResponse"]["properties"])
    assert set(answer["usage"]) == set(schemas["Usage"]["properties"])


def test_metrics_count_what_was_asked(model: Path) -> None:
    with running(model, served_model_name="counted") as server:
        asked = 5
        for i in range(asked):
            server.http.post(COMPLETIONS, json={"prompt": [10, 11, 12, 13], "max_tokens": 6 + i})
        server.http.post(COMPLETIONS, json={"prompt": [2, 2], "max_tokens": 6})  # ends at once
        tokens = sum(6 + i for i in range(asked)) + 1
        assert server.metric("request_success_total", finished_reason="length", model_name="counted") == asked
        assert server.metric("request_success_total", finished_reason="stop") == 1
        assert server.metric("prompt_tokens_total") == 4 * asked + 2
        assert server.metric("generation_tokens_total") == tokens
        assert server.metric("request_prompt_tokens_sum") == 4 * asked + 2
        assert server.metric("request_generation_tokens_sum") == tokens
        assert server.metric("inter_token_latency_seconds_count") == tokens - asked - 1
        assert server.metric("iteration_tokens_total_sum") == tokens
        assert server.metric("cache_config_info", block_size="16", core="fake") == 1
        for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
            assert server.metric(f"{name}_seconds_count") == asked + 1
        for name in ("num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "num_requests_waiting"):
            assert server.metric(name) == 0
        durations = [
            server.metric(f"{n}_seconds_sum") for n in ("request_queue_time", "request_prefill_time", "request_decode_time")
        ]
        assert sum(durations) == pytest.approx(server.metric("e2e_request_latency_seconds_sum"))


# ---- clients that leave or dawdle


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_its_memory(server: Running, streamed: bool) -> None:
    steps, aborted = server.metric("engine_steps_total"), server.metric("request_success_total", finished_reason="abort")
    connection = raw_request(server, {**LONG, "stream": streamed})
    until(lambda: server.metric("num_requests_running") == 1)
    connection.close()
    server.until_idle()
    assert server.metric("engine_steps_total") - steps < 500
    until(lambda: server.metric("request_success_total", finished_reason="abort") == aborted + 1)


def test_a_client_that_does_not_read_holds_up_nobody(server: Running) -> None:
    with raw_request(server, {"prompt": "é" * 300, "max_tokens": 400, "stream": True}) as dawdler:
        quick = server.http.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 10})
        assert quick.status_code == 200
        server.until_idle()  # the dawdler's request is computed to its end all the same
        received = b""
        while b"[DONE]" not in received:
            received += dawdler.recv(65536)
    assert received.count("é".encode()) == 200  # of two tokens each


def test_many_clients_some_of_which_leave(server: Running) -> None:
    def one(i: int) -> str | None:
        body = {"prompt": f"request {i:03} ", "max_tokens": 5 + i % 40, "ignore_eos": True}
        if i % 3 == 0:
            with httpx.stream(
                "POST", server.url + COMPLETIONS, json={**body, "max_tokens": 900, "stream": True}, timeout=LIMIT_S
            ) as s:
                for _ in zip(range(1 + i % 7), s.iter_lines(), strict=False):
                    pass
            return None
        answer = post(server, body).json()
        assert answer["usage"]["completion_tokens"] == 5 + i % 40
        return str(answer["choices"][0]["text"])

    with ThreadPoolExecutor(30) as pool:
        texts = list(pool.map(one, range(90)))
    for i, text in enumerate(texts):
        if text is not None:
            assert text == (f"request {i:03} " * 10)[: len(text)]
    server.until_idle()


# ---- the engine fails


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"prompt": "x", "seed": fake.CRASH}, "ZeroDivisionError: the core divides by zero"),
        (None, "was killed by SIGKILL"),
    ],
    ids=["an exception", "kill -9"],
)
def test_when_the_engine_dies_every_client_is_told(model: Path, body: dict[str, Any] | None, sentence: str) -> None:
    with running(model) as server, ThreadPoolExecutor(20) as pool:
        started = [threading.Event() for _ in range(5)]
        streams = [pool.submit(stream, server, LONG, event) for event in started]
        whole = [pool.submit(post, server, LONG) for _ in range(5)]
        assert all(event.wait(LIMIT_S) for event in started)
        until(lambda: server.metric("num_requests_running") == 10)
        if body is None:
            os.kill(server.engine_pid(), signal.SIGKILL)
        else:
            whole.append(pool.submit(post, server, body))
        died = time.monotonic()
        for one in whole:
            answer = one.result(LIMIT_S)
            assert answer.status_code == 503
            assert sentence in answer.json()["error"]["message"]
        for each in streams:
            last = each.result(LIMIT_S)[-1]
            assert sentence in last["error"]["message"]
        assert time.monotonic() - died < 5
        health = server.http.get("/health")
        assert health.status_code == 503
        assert sentence in health.json()["error"]["message"]
        later = post(server, LONG)
        assert (later.status_code, later.json()["error"]["code"]) == (503, "engine_unavailable")
        assert server.metric("num_requests_running") == server.metric("kv_cache_usage_perc") == 0
        assert server.metric("kv_cache_tokens", state="reserved") == 0
        assert server.metric("engine_steps_total") > 0
        assert server.metric("request_success_total", finished_reason="error") == len(whole) + len(streams)
        assert server.metric("request_success_total", finished_reason="abort") == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        assert sentence in server.lines[-1]


def test_a_fault_on_one_request_is_told_and_the_rest_goes_on(server: Running) -> None:
    refused = post(server, {"prompt": "x", "seed": fake.REFUSE})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")
    for streamed in (False, True):
        failed = post(server, {"prompt": "x", "seed": fake.BUG, "stream": streamed})
        assert failed.status_code == 500
        assert failed.json()["error"]["type"] == "server_error"
    assert post(server, {"prompt": "x"}).status_code == 200


# ---- starting


@pytest.mark.parametrize(
    ("engine_model", "sentence"),
    [
        (fake.REFUSED, "octavo: model is refused: this core takes any other."),
        (fake.BROKEN, "octavo: The engine could not start: KeyError: 'a fault while building'"),
        (fake.GONE, "octavo: The engine process ended with status 9."),
    ],
)
def test_an_engine_that_cannot_start_ends_the_server_with_its_sentence(model: Path, engine_model: str, sentence: str) -> None:
    server = launch(model, engine_model)
    try:
        assert server.wait() == 1
        assert server.lines[-1] == sentence
    finally:
        server.close()


def test_a_port_in_use_and_a_host_that_is_none(server: Running, model: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    for settings, words in (
        ({"port": port}, f"port {port} at 127.0.0.1 cannot be listened on"),
        ({"host": "no such"}, "host is no such"),
    ):
        second = launch(model, **settings)
        try:
            assert second.wait() == 1
            assert words in second.output
            assert "Traceback" not in second.output
        finally:
            second.close()


def test_a_port_that_another_server_will_use_is_refused_before_the_model_is_loaded(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = launch(model, fake.ASLEEP, port=port)
    try:
        until(lambda: len(children(first.process.pid)) == 1)
        second = launch(model, fake.ASLEEP, port=port)
        try:
            assert second.wait() == 1
            assert f"port {port} at 127.0.0.1 cannot be listened on" in second.output
        finally:
            second.close()
    finally:
        first.close()


def test_a_signal_while_the_engine_starts_ends_both(model: Path) -> None:
    server = launch(model, fake.ASLEEP)
    try:
        until(lambda: len(children(server.process.pid)) == 1)
        engine = server.engine_pid()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        until(lambda: not alive(engine))
    finally:
        server.close()


def test_the_server_imports_no_torch() -> None:
    program = "import sys, octavo.server.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S).returncode == 0


# ---- finishing


def test_sigterm_finishes_what_runs(model: Path) -> None:
    with running(model) as server, ThreadPoolExecutor(4) as pool:
        engine = server.engine_pid()
        body = {"prompt": "abc", "max_tokens": 300}
        started = threading.Event()
        streamed = pool.submit(stream, server, body, started)
        whole = pool.submit(post, server, body)
        assert started.wait(LIMIT_S)
        until(lambda: server.metric("num_requests_running") == 2)
        server.http.close()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not listens(server))
        *_, last, done = streamed.result(LIMIT_S)
        assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        assert whole.result(LIMIT_S).json()["usage"]["completion_tokens"] == 300
        assert server.wait() == 0
        assert not alive(engine)
        assert server.lines[-1] == "octavo: finishing 2 requests, for at most 30 s; a second signal ends at once"


@pytest.mark.parametrize("sent", ["", "POST /v1", HALF], ids=["nothing", "half a head", "half a body"])
def test_sigterm_does_not_wait_for_requests_that_are_not_complete(model: Path, sent: str) -> None:
    with running(model) as server, raw_connection(server) as connection:
        connection.sendall(sent.encode())
        until(lambda: server.http.get("/health").status_code == 200)  # by now the server has read what was sent
        server.http.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        answer = received(connection)
        assert (b" 503 " in answer and b"shutting_down" in answer) if sent == HALF else not answer
        assert server.lines[-1] == "octavo: ending; no request is under way"


def test_when_the_time_to_finish_is_over_clients_are_told(model: Path) -> None:
    with running(model, shutdown_timeout=0.2) as server, ThreadPoolExecutor(4) as pool:
        started = threading.Event()
        streamed = pool.submit(stream, server, LONG, started)
        whole: Future[httpx.Response] = pool.submit(post, server, LONG)
        assert started.wait(LIMIT_S)
        until(lambda: server.metric("num_requests_running") == 2)
        server.http.close()
        server.process.send_signal(signal.SIGINT)
        assert "shuts down" in streamed.result(LIMIT_S)[-1]["error"]["message"]
        assert whole.result(LIMIT_S).status_code == 503
        assert server.wait() == 0


def test_a_second_signal_ends_everything_at_once(model: Path) -> None:
    with running(model, shutdown_timeout=60) as server, ThreadPoolExecutor(1) as pool:
        engine = server.engine_pid()
        started = threading.Event()
        streamed = pool.submit(stream, server, LONG, started)
        assert started.wait(LIMIT_S)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not listens(server))
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        until(lambda: not alive(engine))
        with pytest.raises(httpx.TransportError):
            streamed.result(LIMIT_S)


def listens(server: Running) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionError:
        return False
    return True
