"""Connection and Pool: HTTP/1.1 for many streams at once, with the moment of arrival taken where bytes arrive.

A library's client takes the time after its own layers and a task switch have run: with 500 streams that is milliseconds later. So
this is asyncio's Protocol with httptools, the parser that uvicorn uses. It speaks what a load generator needs: POST with a
length, answers with a length, chunked or ended by the close, and connections that are used again.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import SplitResult

import httptools

from octavo.bench.client.answer import Answer
from octavo.bench.record import CONNECT, DISCONNECT, MALFORMED, TIMEOUT

CONNECT_TIMEOUT_S = 30.0


class Exchange:
    """One request and its answer, on whichever connection.

    payload: all bytes that are sent, head included. on_end: called once, when the answer is complete or has failed.
    """

    def __init__(self, payload: bytes, answer: Answer, timeout_s: float, on_end: Callable[[Exchange], None]):
        self.payload = payload
        self.answer = answer
        self.timeout_s = timeout_s
        self.on_end = on_end
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect: resolved once, so that no name is looked up while the load runs."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str

    @classmethod
    async def resolve(cls, url: SplitResult) -> Address:
        """Raises OSError where the name does not resolve."""
        assert url.hostname is not None
        tls = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if tls else 80)
        found = await asyncio.get_running_loop().getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        for *_, place in found[:-1]:  # a name such as localhost has several, and a server may listen on one alone
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(str(place[0]), port), CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError):
                continue
            writer.close()
            return cls(str(place[0]), port, tls, url.hostname)
        return cls(str(found[-1][4][0]), port, tls, url.hostname)


class Pool:
    """Connections to one server: an idle one is taken first, another one opened where none is."""

    def __init__(self, address: Address):
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    def send(self, exchange: Exchange) -> None:
        """Send it and let its answer take in what comes. Never raises: failures are the answer's."""
        exchange.timer = self._loop.call_later(exchange.timeout_s, self._give_up, exchange)
        self._dispatch(exchange)

    def close(self) -> None:
        """Drop every connection; what is under way is left as it is."""
        for task in self._opening:
            task.cancel()
        for connection in list(self._all):
            connection.exchange = None
            connection.transport.abort()

    # ---- for connections

    def opened(self, connection: Connection) -> None:
        self._all.add(connection)

    def idle(self, connection: Connection) -> None:
        self._idle.append(connection)

    def gone(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def retry(self, exchange: Exchange) -> None:
        """A connection that was kept turned out to be closed by the server: that is no failure of this request. On a new one it
        would be, so this happens once."""
        self._open(exchange)

    def end(self, exchange: Exchange) -> None:
        """The answer is over."""
        exchange.connection = None
        if exchange.timer is not None:
            exchange.timer.cancel()
        exchange.on_end(exchange)

    # ----

    def _dispatch(self, exchange: Exchange) -> None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.send(exchange)
                return
        self._open(exchange)

    def _open(self, exchange: Exchange) -> None:
        task = self._loop.create_task(self._connect(exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, exchange: Exchange) -> None:
        where = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self),
                    where.host,
                    where.port,
                    ssl=where.tls,
                    server_hostname=where.name if where.tls else None,
                )
        except (OSError, TimeoutError) as error:
            if not exchange.answer.over:
                exchange.answer.fail(time.monotonic(), CONNECT, f"No connection: {error or 'no answer in time'}.")
                self.end(exchange)
            return
        if exchange.answer.over:  # given up meanwhile
            self.idle(connection)
        else:
            connection.send(exchange)

    def _give_up(self, exchange: Exchange) -> None:
        exchange.answer.fail(time.monotonic(), TIMEOUT, f"It took longer than {exchange.timeout_s:g} s.")
        if exchange.connection is not None:
            exchange.connection.drop()
        self.end(exchange)


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool):
        self.exchange: Exchange | None = None
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._used = False  # an exchange has completed on it
        self._begun = False  # something of the answer has come
        self._content_type = ""
        self._delimited = False  # the answer says where it ends

    def send(self, exchange: Exchange) -> None:
        """Write the request."""
        self.exchange, exchange.connection = exchange, self
        self._begun = self._delimited = False
        self._content_type = ""
        exchange.answer.record.sent = time.monotonic()
        self.transport.write(exchange.payload)

    def drop(self) -> None:
        """Close at once; nobody waits for the answer any more."""
        self.exchange = None
        self.transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(MALFORMED, f"The answer is no HTTP: {error}.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.gone(self)
        exchange = self.exchange
        if exchange is None:
            return
        self._now = time.monotonic()
        if not self._begun and self._used:
            self.exchange = None
            self._pool.retry(exchange)
        elif exc is None and self._begun and not self._delimited and exchange.answer.started:
            self._complete()  # the close is the end of such an answer
        else:
            when = "in the middle of the answer" if self._begun else "before the answer"
            self._fail(DISCONNECT, f"The server closed the connection {when}{f' ({exc})' if exc else ''}.")

    # ---- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.answer.head(self._parser.get_status_code(), self._content_type)

    def on_body(self, body: bytes) -> None:
        if self.exchange is not None:
            self.exchange.answer.body(self._now, body)
            if self.exchange.answer.over:  # it failed: the rest is of no interest
                self._end(reuse=False)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete()

    # ----

    def _complete(self) -> None:
        if self.exchange is not None:
            self.exchange.answer.complete(self._now)
            self._end(reuse=self._delimited and self._parser.should_keep_alive())

    def _fail(self, kind: str, message: str) -> None:
        if self.exchange is not None:
            self.exchange.answer.fail(self._now, kind, message)
            self._end(reuse=False)
        else:
            self.transport.abort()

    def _end(self, reuse: bool) -> None:
        exchange, self.exchange = self.exchange, None
        assert exchange is not None
        self._used = True
        if reuse and not self.transport.is_closing():
            self._pool.idle(self)
        else:
            self.transport.abort()
        self._pool.end(exchange)
