"""What is below the application: uvicorn, with bounds on connections that have not brought a whole request's head yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from octavo.server.errors import ApiError

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:  # the extra ``fast-http`` is not installed
    HttpToolsProtocol = None  # type: ignore[assignment,misc]

KEEP_ALIVE_S = 75  # longer than clients keep connections, so that they close them and no request meets a closed one
MAX_HEAD_BYTES = 64 * 1024  # of a request's line and headers; what arrives in one piece may be one read (256 KiB) more

if TYPE_CHECKING:
    _Base = H11Protocol
else:
    _Base = object


class _Bounded(_Base):
    """A connection that is closed when it brings nothing for KEEP_ALIVE_S while no request is under way; uvicorn waits so only
    after an answer, not for the first head and not for the rest of one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def _wait(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def refuse(self, error: ApiError) -> None:
        """Answer what is no request, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = error.body()
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self.refuse(_too_large() if self.head_too_large else ApiError(400, "This is no HTTP request.", code="invalid_http"))

    @property
    def head_too_large(self) -> bool:
        raise NotImplementedError


class _H11(_Bounded, H11Protocol):
    """h11 limits the head itself: see ``protocol``."""

    @property
    def head_too_large(self) -> bool:
        return len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES


if HttpToolsProtocol is not None:

    class _HttpTools(_Bounded, HttpToolsProtocol):  # type: ignore[misc]
        """httptools keeps a head of any size; this counts what of it has come."""

        _head: int | None = None  # bytes of the head that is under way

        def data_received(self, data: bytes) -> None:
            before = self.headers  # another list for each request
            super().data_received(data)
            if self._head is not None and self.headers is before:  # the whole piece belongs to the head, and did not complete it
                self._head += len(data)
                if self.head_too_large:
                    self.refuse(_too_large())

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head = 0

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        @property
        def head_too_large(self) -> bool:
            return self._head is not None and self._head > MAX_HEAD_BYTES


def _too_large() -> ApiError:
    message = f"The request's line and headers are larger than {MAX_HEAD_BYTES} bytes, the most that is accepted."
    return ApiError(431, message, code="headers_too_large")


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: it would end the process with the signal, and octavo's end is in order."""

    def __init__(self, app: Any, httptools: bool = HttpToolsProtocol is not None):
        """``httptools``: parse with it, else with h11."""
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                http=_HttpTools if httptools else _H11,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                log_config=None,
                log_level="warning",
                access_log=False,
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                proxy_headers=False,
                server_header=False,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def drop_connections(self) -> None:
        """Break off what is left: clients that do not read their answers. Their requests end as if they had left."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
