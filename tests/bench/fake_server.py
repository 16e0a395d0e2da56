"""An HTTP server whose every byte and pause a test decides, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.bench.test_answer import DONE, event, text, usage

# What a script may hold besides bytes, which are written and a number, which is a pause in seconds.
CLOSE = "close"
RESET = "reset"
WAIT = "wait"  # until the client has left

Script = Sequence[bytes | float | str]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    """An answer with a length."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def answer(count: int, first_s: float = 0.0, gap_s: float = 0.0, prompt: int = 10) -> Script:
    """A streamed completion of ``count`` tokens."""
    script: list[bytes | float | str] = [HEAD, first_s]
    for i in range(count):
        script += [gap_s] if i and gap_s else []
        script.append(chunk(event(text("x"))))
    return [*script, chunk(event(text("", "length")) + event(usage(prompt, count)) + event(DONE)) + LAST]


@dataclass
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int


@dataclass
class FakeServer:
    """asked: the requests up to now. written: for each answer, the moments at which its pieces were written."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    written: list[list[float]] = field(default_factory=list)
    models: bytes = json.dumps({"data": [{"id": "fake", "max_model_len": 512}]}).encode()
    metrics: bytes = b""
    left: int = 0  # clients that left before an answer was over


@contextmanager
def serving(script: Callable[[int, Asked], Script]) -> Iterator[FakeServer]:
    """A server that answers request i with ``script(i, asked)``; /v1/models and /metrics answer by themselves."""
    fake, ready, loop = FakeServer(), threading.Event(), asyncio.new_event_loop()
    connections = iter(range(10_000))

    async def play(steps: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        moments: list[float] = []
        fake.written.append(moments)
        for step in steps:
            if isinstance(step, bytes):
                moments.append(time.monotonic())  # before: the client may have read it when ``write`` returns
                writer.write(step)
                await writer.drain()
            elif step == CLOSE:
                return False
            elif step == RESET:
                writer.transport.abort()
                return False
            elif step == WAIT:
                if not await reader.read(1):
                    fake.left += 1
                return False
            else:
                await asyncio.sleep(float(step))
        return True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(connections)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                path = first.split()[1]
                if path in ("/v1/models", "/metrics"):
                    body = fake.models if path == "/v1/models" else fake.metrics
                    writer.write(whole("200 OK" if body else "404 Not Found", body))
                    continue
                asked = Asked(path, headers, json.loads(await reader.readexactly(int(headers["content-length"]))), number)
                fake.asked.append(asked)
                if not await play(script(len(fake.asked) - 1, asked), reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        async with server:
            await stop.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
