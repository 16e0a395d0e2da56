"""listen: a socket for a server, taken before anything else is done."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from octavo.errors import ConfigError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens while the server starts: whoever connects waits until it can answer. Raises ConfigError.

    Bound alone it would not hold the port: a second server could bind it too, and fail only after loading its model.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"host is {host}: it is no address or name that can be resolved ({error}).") from None
    listener = socket.socket(family, kind, protocol)
    try:
        with _errors(host, port):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> str:
    """Where it listens, as a URL has it: host:port."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _errors(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"port {port} at {host} cannot be listened on: {(error.strerror or str(error)).lower()}.") from None
