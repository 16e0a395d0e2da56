"""Connections below the application: heads that are too large or never complete, bodies that do not come, answers unread."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from octavo.server import connections
from octavo.server.body import BodyReader
from octavo.server.connections import MAX_HEAD_BYTES, HttpServer
from octavo.server.errors import ApiError

LIMIT_S = 20


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1000):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})


@asynccontextmanager
async def serving(app: Any, httptools: bool) -> AsyncGenerator[tuple[HttpServer, int], None]:
    """The server and its port; at the end it has shut down."""
    http = HttpServer(app, httptools)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        task = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(LIMIT_S):
                while not http.started:
                    await asyncio.sleep(0.01)
                yield http, port
        finally:
            http.should_exit = True
            await asyncio.wait_for(task, LIMIT_S)


async def exchange(port: int, *pieces: bytes) -> bytes:
    """What comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionError:  # closed while more was being sent
        return b""
    finally:
        writer.close()


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(
    connections.HttpToolsProtocol is None, reason="httptools is not installed"))], ids=["h11", "httptools"])  # fmt: skip
def httptools(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("head", [GET + b"A: ", GET, b"GET /"], ids=["one header", "many headers", "path"])
def test_a_head_that_is_too_large_is_refused(httptools: bool, head: bytes) -> None:
    piece = b"A: b\r\n" * 700 if head == GET else b"x" * 4200

    async def talk() -> None:
        async with serving(hello, httptools) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answering = asyncio.create_task(reader.read(65536))
            writer.write(head)
            sent = 0
            while not answering.done():
                writer.write(piece)
                sent += len(piece)
                await asyncio.sleep(0.01)
            answer = answering.result()
            writer.close()
            assert MAX_HEAD_BYTES < sent < MAX_HEAD_BYTES + 300_000
            assert answer.startswith(b"HTTP/1.1 431 ")
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert str(MAX_HEAD_BYTES) in error["message"]
            assert error["code"] == "headers_too_large"
            assert not (await exchange(port, head, b"x" * 10_000_000)).startswith(b"HTTP/1.1 200")

    asyncio.run(talk())


def test_a_large_body_is_no_part_of_the_head(httptools: bool) -> None:
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\nConnection: "

    async def sink(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        await hello(scope, receive, send)

    async def talk() -> None:
        async with serving(sink, httptools) as (_, port):
            for cut in (3, len(post)):
                whole = (post + b"keep-alive\r\n\r\n" + b"x" * 400_000) * 2 + post + b"close\r\n\r\n" + b"x" * 400_000
                answer = await exchange(port, whole[:cut], whole[cut:])
                assert answer.count(b"HTTP/1.1 200") == 3

    asyncio.run(talk())


def test_what_is_no_request_is_answered_in_json(httptools: bool) -> None:
    async def talk() -> bytes:
        async with serving(hello, httptools) as (_, port):
            return await exchange(port, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")

    answer = asyncio.run(talk())
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET + b"\r\n" + GET], ids=["nothing", "half a head", "half a second one"])
def test_a_head_that_never_completes_is_given_up(httptools: bool, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 1)

    async def talk() -> bytes:
        async with serving(hello, httptools) as (_, port):
            return await exchange(port, sent)

    assert asyncio.run(talk()).count(b"200 OK") == sent.count(b"\r\n\r\n")


def test_answers_that_nobody_reads_are_broken_off_without_a_word(httptools: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        async with serving(endless, httptools) as (http, port):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(GET + b"\r\n")
                while not any(c.flow is not None and c.flow.write_paused for c in http.server_state.connections):
                    await asyncio.sleep(0.01)
                http.should_exit = True
                http.drop_connections()
                while http.server_state.tasks:
                    await asyncio.sleep(0.01)

    asyncio.run(talk())
    assert not caplog.records


# ---- bodies


def half_sent(pieces: list[bytes]) -> Request:
    """A request of which these pieces come, and no more."""

    async def receive() -> dict[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": True}
        await asyncio.sleep(LIMIT_S)
        raise AssertionError("the reader waited on")

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(ApiError) as refusal:
        asyncio.run(BodyReader(100, patience=0.05).read(half_sent([b"a", b"b"])))
    assert (refusal.value.status, refusal.value.code) == (408, "request_timeout")
    assert refusal.value.response().headers["connection"] == "close"


@pytest.mark.parametrize("before", [False, True])
def test_a_body_on_its_way_is_given_up_at_shutdown(before: bool) -> None:
    async def talk() -> None:
        bodies = BodyReader(100)
        if before:
            bodies.close()
        reading = asyncio.create_task(bodies.read(half_sent([b"a"])))
        await asyncio.sleep(0)
        bodies.close()
        await reading

    with pytest.raises(ApiError) as refusal:
        asyncio.run(talk())
    assert refusal.value.status == 503
