"""A scripted server behind a capturing proxy, both in this process and on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from octavo.bench.capture.live import ProxyServer
from octavo.bench.capture.prompt import PromptReader
from octavo.bench.capture.proxy import PassThrough
from octavo.bench.capture.recorder import TrafficRecorder
from octavo.bench.capture.writer import CaptureWriter
from octavo.server.listen import address_of, listen

LIMIT_S = 10.0
Answer = Callable[[Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]


@dataclass
class Seen:
    """A request as it reached the upstream server."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)


class Upstream:
    """Answers every request by its ``answer``, a function of ASGI's ``send``; keeps what it has seen."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.answer: Answer = plain(b"{}")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        seen = Seen(scope["method"], target.decode(), headers, body)
        self.seen.append(seen)
        answering = asyncio.create_task(self.answer(send))
        leaving = asyncio.create_task(_disconnect(receive))
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not answering.done():
            seen.disconnected.set()
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


def plain(
    body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
) -> Answer:
    """An answer in one piece."""

    async def answer(send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        given = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": body})

    return answer


def stream(*events: str, gate: asyncio.Event | None = None, breaks: bool = False) -> Answer:
    """An answer as events; behind the first of them it waits for ``gate``. breaks: the connection ends before the answer does."""

    async def answer(send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for i, event in enumerate(events):
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
            if i == 0 and gate is not None:
                await gate.wait()
        if not breaks:
            await send({"type": "http.response.body", "body": b""})

    return answer


@dataclass
class Bench:
    """client: speaks to the proxy. port_of_upstream: free once ``stop_upstream`` was called."""

    upstream: Upstream
    client: httpx.AsyncClient
    recorder: TrafficRecorder
    file: Path
    stop_upstream: Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def capturing(folder: Path, reader: PromptReader | None = None) -> AsyncIterator[Bench]:
    """An upstream server, a proxy before it, and a client; the capture is complete when the context ends."""
    upstream = Upstream()
    file = folder / "capture.jsonl"
    writer = CaptureWriter(file)
    recorder = TrafficRecorder(writer, reader or PromptReader())
    behind = listen("127.0.0.1", 0)
    base = f"http://{address_of(behind)}"
    server = uvicorn.Server(_config(upstream))
    async with serving(server, behind) as stop, proxied(base, recorder) as client:
        yield Bench(upstream, client, recorder, file, stop)
        server.should_exit = server.force_exit = True  # both servers take their time to end: at the same time
    recorder.close()


@contextlib.asynccontextmanager
async def proxied(base: str, recorder: TrafficRecorder) -> AsyncIterator[httpx.AsyncClient]:
    """A proxy before the server at ``base``, and a client of it."""
    proxy = PassThrough(base, recorder)
    listener = listen("127.0.0.1", 0)
    async with serving(ProxyServer(proxy), listener):
        async with httpx.AsyncClient(base_url=f"http://{address_of(listener)}", timeout=LIMIT_S, trust_env=False) as client:
            yield client
        await proxy.close()


@contextlib.asynccontextmanager
async def serving(server: uvicorn.Server, listener: Any) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The server runs; what is given back stops it."""
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]))

    async def stop() -> None:
        server.should_exit = server.force_exit = True
        await task

    try:
        yield stop
    finally:
        await stop()
        listener.close()


async def _disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(app, lifespan="off", log_config=None, log_level="critical", access_log=False, ws="none")
