"""Answers that take a while: given up when the client leaves, or sent piece by piece as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from octavo.server.errors import as_api_error

T = TypeVar("T")

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks proxies to pass every event on at once
]
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One event that carries one JSON text."""
    return b"data: " + data + b"\n\n"


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``; None if the client left before, and then ``work`` is cancelled at once."""
    task = asyncio.create_task(work)
    left = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        pending = [t for t in (task, left) if not t.done()]
        for t in pending:
            t.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An answer of events. It starts with the first one: what fails before that is answered with its own status."""

    def __init__(self, events: AsyncGenerator[bytes, None]):
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, self._respond(send))

    async def _respond(self, send: Send) -> None:
        started = False
        async with aclosing(self._events) as events:
            try:
                async for data in events:
                    if not started:
                        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                        started = True
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except Exception as error:
                if not started:
                    raise
                await send({"type": "http.response.body", "body": event(as_api_error(error).body()), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
