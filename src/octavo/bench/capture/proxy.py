"""PassThrough: an ASGI application that hands every request on to another server, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable

import aiohttp
from multidict import CIMultiDict
from starlette.types import Receive, Scope, Send
from yarl import URL

from octavo.bench.capture.recorder import ENDPOINTS, Passage, TrafficRecorder

CONNECT_TIMEOUT_S = 30.0
# An idle connection is dropped before the server does it (uvicorn, and with it vLLM and SGLang, after 5 s): so no request meets a
# connection that is being closed.
KEEP_ALIVE_S = 3.0
LONGEST_LINE = 64 * 1024  # bytes of one header
# Of one connection, not of the message: RFC 9110, section 7.6.1.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
OURS = frozenset({b"host", b"expect"})  # of the request's headers: those for this server


class PassThrough:
    """Any path, method and headers; nothing is buffered, changed or interpreted.

    Two things are added: what is in the way of measuring is not asked for (answers to completions come uncompressed), and of
    completions ``recorder`` is told. A client that leaves is gone for the server, too; a server that cannot be reached is a 502.

    upstream: the server's address, up to where the client's path goes on.
    """

    def __init__(self, upstream: str, recorder: TrafficRecorder):
        self._base = upstream.rstrip("/")
        self._recorder = recorder
        self._started = time.monotonic()
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        passage = None
        if scope["method"] == "POST" and scope["path"].endswith(ENDPOINTS):
            passage = Passage(time.monotonic() - self._started)
        client = _Client(receive, passage, _has_body(scope))
        relay = asyncio.create_task(self._relay(scope, client, send, passage))
        left = asyncio.create_task(client.wait_until_it_leaves())
        try:
            await asyncio.wait({relay, left}, return_when=asyncio.FIRST_COMPLETED)
            if passage is not None and not relay.done():
                passage.aborted = True
        finally:
            for task in (relay, left):
                task.cancel()
            await asyncio.gather(relay, left, return_exceptions=True)
            if passage is not None:
                self._recorder.add(passage)
        if not relay.cancelled() and (error := relay.exception()) is not None:
            raise error

    async def close(self) -> None:
        """Close the connections to the server."""
        if self._session is not None:
            await self._session.close()

    async def _relay(self, scope: Scope, client: _Client, send: Send, passage: Passage | None) -> None:
        target = self._base + scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        headers = CIMultiDict(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in _passed(scope["headers"], OURS)
        )
        if passage is not None:
            headers["Accept-Encoding"] = "identity"
        body = client.body() if _has_body(scope) else None
        try:
            answer = await self._open().request(
                scope["method"], URL(target, encoded=True), headers=headers, data=body, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            await _bad_gateway(send, f"The server at {self._base} does not answer: {str(error) or type(error).__name__}.")
            return
        try:
            if passage is not None:
                content_type = answer.headers.get("Content-Type", "")
                passage.answered(answer.status, content_type, self._recorder.keeps_text)
            head = _passed([(name.lower(), value) for name, value in answer.raw_headers], frozenset())
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            async for piece in answer.content.iter_any():
                if passage is not None and passage.answer is not None:
                    passage.answer.feed(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, OSError):  # the server has broken off, and so must this: an answer that is not complete
            if passage is not None:
                passage.aborted = True
        finally:
            answer.close()  # where it did not come to its end the connection goes, and the server sees that nobody reads on

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                max_line_size=LONGEST_LINE,
                max_field_size=LONGEST_LINE,
            )
        return self._session


class _Client:
    """The client's side of one request."""

    def __init__(self, receive: Receive, passage: Passage | None, has_body: bool):
        self._receive = receive
        self._passage = passage
        self._left = False
        self._read = asyncio.Event()  # nobody reads the body any more
        if not has_body:
            self._read.set()

    async def body(self) -> AsyncIterator[bytes]:
        """The request's body as it comes."""
        try:
            more = True
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._left = True
                    raise ConnectionResetError("The client left.")
                piece = message.get("body", b"")
                more = message.get("more_body", False)
                if self._passage is not None:
                    self._passage.take_body(piece)
                if piece:
                    yield piece
        finally:
            self._read.set()

    async def wait_until_it_leaves(self) -> None:
        """Returns once nobody waits for the answer any more."""
        await self._read.wait()
        while not self._left:
            self._left = (await self._receive())["type"] == "http.disconnect"


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _passed(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers that concern the message; their names are in lower case."""
    found = list(headers)
    named = {name.strip().lower() for header, value in found if header == b"connection" for name in value.split(b",")}
    return [(name, value) for name, value in found if name not in HOP_BY_HOP | without | named]


async def _bad_gateway(send: Send, message: str) -> None:
    body = json.dumps(
        {"error": {"message": message, "type": "bad_gateway", "param": None, "code": "upstream_unreachable"}}
    ).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 502, "headers": headers})
    await send({"type": "http.response.body", "body": body})
