"""capture_live: the proxy as a server of its own, from its start to the last row."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from octavo.bench.capture.model import TextSide
from octavo.bench.capture.prompt import PromptReader
from octavo.bench.capture.proxy import PassThrough
from octavo.bench.capture.recorder import TrafficRecorder
from octavo.bench.capture.summary import summary
from octavo.bench.capture.writer import CaptureWriter
from octavo.bench.client.openai import parse_url
from octavo.server.listen import address_of, listen

LAST_ANSWERS_S = 30  # for requests that are under way when the capture is ended


def capture_live(upstream: str, output: Path, *, host: str, port: int, text: TextSide) -> int:
    """Pass requests on to ``upstream`` and record them in ``output``, until SIGINT or SIGTERM. Returns the exit status.

    upstream: the server's address, with or without /v1 behind it. port: 0 for any free one.
    Raises ConfigError where the address is none or the port is taken, WorkloadError where the file cannot be made.
    """
    address = parse_url(upstream, None, setting="upstream")
    with listen(host, port) as listener:
        writer = CaptureWriter(output)
        recorder = TrafficRecorder(writer, PromptReader(text.tokenizer, text.template))
        try:
            asyncio.run(_serve(address.base.removesuffix("/v1"), recorder, listener, output, text))
        finally:
            recorder.close()
    print(summary(writer, output))
    return 0


async def _serve(base: str, recorder: TrafficRecorder, listener: socket.socket, output: Path, text: TextSide) -> None:
    proxy = PassThrough(base, recorder)
    server = ProxyServer(proxy)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)  # a second SIGINT waits for nobody
    print(f"octavo capture passes http://{address_of(listener)} on to {base} and writes {output}. {text.told}", flush=True)
    try:
        await server.serve(sockets=[listener])
    finally:
        await proxy.close()


class ProxyServer(uvicorn.Server):
    """uvicorn as a proxy needs it: no headers of its own, no word about answers that the other server broke off."""

    def __init__(self, app: Any):
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=LAST_ANSWERS_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
