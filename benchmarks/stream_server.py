"""A server that streams tokens of an OpenAI completion by a fixed schedule and computes nothing: for measuring load generators.

    python benchmarks/stream_server.py [--port 0] [--ttft 0.05] [--itl 0.02] [--tokens-per-chunk 1] [--in-step]

Each request gets its first token after ttft to 2 * ttft, which differs from request to request and is the same in every run, then
one chunk every itl, max_tokens in all. --in-step: after ttft exactly, so that what begins together is written together, as a
batch's tokens are. GET /log returns when each chunk was written, in seconds of time.monotonic(), by X-Request-Id; POST /reset
empties it and counts requests from 0.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODEL = "stream"
GOLDEN = 0.6180339887498949  # its multiples, fractions only, are spread evenly however many they are


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(choices: bytes, more: bytes = b"") -> bytes:
    return (
        b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,"model":"stream",'
        b'"choices":%s%s}\n\n' % (choices, more)
    )


def text(words: bytes, finish: bytes = b"null") -> bytes:
    return b'[{"index":0,"text":"%s","logprobs":null,"finish_reason":%s,"stop_reason":null}]' % (words, finish)


class Schedule:
    """What every connection follows, and the log of what was written."""

    def __init__(self, ttft: float, itl: float, tokens_per_chunk: int, in_step: bool):
        self.ttft, self.itl, self.tokens_per_chunk, self.in_step = ttft, itl, tokens_per_chunk, in_step
        self.chunk = chunked(event(text(b" token" * tokens_per_chunk)))
        self.reset()

    def reset(self) -> None:
        self.numbers = itertools.count()
        self.log: dict[str, list[float]] = {}

    def first(self) -> float:
        """Seconds to the next request's first token."""
        return self.ttft * (1 if self.in_step else 1 + next(self.numbers) * GOLDEN % 1)


class Connection(asyncio.Protocol):
    """HTTP/1.1 with a length, one request at a time."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.loop = asyncio.get_running_loop()
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, rest = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = int(headers.get(b"content-length", 0))
        if len(rest) < length:
            return
        self.data = rest[length:]
        path = first.split()[1]
        if path == b"/v1/completions":
            self.stream(headers.get(b"x-request-id", b"").decode(), msgspec.json.decode(rest[:length]))
        elif path == b"/log":
            self.whole(msgspec.json.encode(self.schedule.log))
        elif path == b"/reset":
            self.schedule.reset()
            self.whole(b"{}")
        elif path == b"/v1/models":
            self.whole(b'{"object":"list","data":[{"id":"stream","object":"model","max_model_len":8192}]}')
        else:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)

    def stream(self, name: str, body: dict) -> None:
        schedule = self.schedule
        self.left = body["max_tokens"]
        self.usage = {"completion_tokens": self.left}
        if isinstance(body["prompt"], list):  # the tokens of a text are not known here
            self.usage["prompt_tokens"] = len(body["prompt"])
        self.moments: list[float] = []
        schedule.log[name] = self.moments
        self.transport.write(HEAD)
        self.next = time.monotonic() + schedule.first()
        self.loop.call_later(self.next - time.monotonic(), self.tick)

    def tick(self) -> None:
        schedule = self.schedule
        self.left -= schedule.tokens_per_chunk
        self.moments.append(time.monotonic())
        if self.left > 0:
            self.transport.write(schedule.chunk)
        else:  # as vLLM does: the last chunk says that it is the last
            usage = b',"usage":%s' % msgspec.json.encode(self.usage)
            last = event(text(b" token", b'"length"')), event(b"[]", usage), b"data: [DONE]\n\n"
            self.transport.write(b"".join(map(chunked, last)) + b"0\r\n\r\n")
        if self.left > 0 and not self.transport.is_closing():
            self.next += schedule.itl
            self.loop.call_later(max(0.0, self.next - time.monotonic()), self.tick)


@contextmanager
def started(
    ttft: float, itl: float, *, tokens_per_chunk: int = 1, in_step: bool = False, cpu: int | None = None
) -> Iterator[str]:
    """The server in a process of its own; its URL. cpu: the only CPU that it may use."""
    arguments = [
        sys.executable,
        str(Path(__file__)),
        "--ttft",
        f"{ttft}",
        "--itl",
        f"{itl}",
        "--tokens-per-chunk",
        f"{tokens_per_chunk}",
    ]
    arguments += ["--in-step"] if in_step else []
    pin = ["taskset", "-c", f"{cpu}"] if cpu is not None else []
    process = subprocess.Popen([*pin, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(10)


async def serve(port: int, schedule: Schedule) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(schedule), "127.0.0.1", port, backlog=4096)
    print(f"serving {MODEL} at http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft", type=float, default=0.05, help="seconds")
    parser.add_argument("--itl", type=float, default=0.02, help="seconds")
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--in-step", action="store_true")
    args = parser.parse_args()
    with suppress(ImportError):
        import uvloop

        uvloop.install()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(args.port, Schedule(args.ttft, args.itl, args.tokens_per_chunk, args.in_step)))


if __name__ == "__main__":
    main()
