"""Driver: decides when each request goes out, and waits until all are answered. For targets that answer asynchronously."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from octavo.bench.live import Live
from octavo.bench.record import RequestRecord
from octavo.bench.workload import BenchRequest

Send = Callable[[BenchRequest, RequestRecord, Callable[[], None]], None]


class Driver:
    """Runs one workload once. Belongs to one event loop.

    requests: in order. arrivals: seconds after the start at which each is due; None: whenever fewer than ``limit`` are under way.
    send:     hands a request to the target, which fills in its record and calls back when the record is complete.
    """

    def __init__(self, requests: Sequence[BenchRequest], arrivals: Sequence[float] | None, limit: int, send: Send, live: Live):
        self.records: list[RequestRecord] = []
        self._requests = requests
        self._arrivals = arrivals
        self._limit = limit
        self._send = send
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._due: deque[tuple[BenchRequest, float]] = deque()  # meant to be sent, and no room yet
        self._at = 0  # requests that have become due
        self._running = 0

    async def run(self) -> list[RequestRecord]:
        """Send everything; the records, in order of sending. Cancel it, or call ``stop``, to leave what is under way as it is."""
        self._start = time.monotonic()
        if not self._requests:
            return []
        if self._arrivals is None:
            for _ in range(min(self._limit, len(self._requests))):
                self._next(self._start)
        else:
            self._tick()
        await self._over
        return self.records

    def stop(self) -> None:
        """End now."""
        if not self._over.done():
            self._over.set_result(None)

    # ---- closed loop

    def _next(self, moment: float) -> None:
        if self._at < len(self._requests):
            self._at += 1
            self._begin(self._requests[self._at - 1], moment)

    # ---- open loop

    def _tick(self) -> None:
        assert self._arrivals is not None
        if self._over.done():
            return
        while self._at < len(self._requests):
            due, now = self._start + self._arrivals[self._at], time.monotonic()
            if due > now:
                self._loop.call_later(due - now, self._tick)
                return
            self._due.append((self._requests[self._at], due))
            self._at += 1
            self._drain()

    def _drain(self) -> None:
        while self._due and self._running < self._limit:
            self._begin(*self._due.popleft())

    # ----

    def _begin(self, request: BenchRequest, intended: float) -> None:
        record = RequestRecord(request.index, request.prompt_tokens, request.output_tokens, intended)
        self.records.append(record)
        self._running += 1
        self._live.sent += 1
        self._send(request, record, lambda: self._ended(record))

    def _ended(self, record: RequestRecord) -> None:
        self._running -= 1
        if record.error is None:
            self._live.done += 1
        else:
            self._live.failed += 1
        if self._over.done():
            return
        if self._arrivals is None:
            assert record.ended is not None
            self._next(record.ended)
        else:
            self._drain()
        if not self._running and self._at == len(self._requests) and not self._due:
            self._over.set_result(None)
