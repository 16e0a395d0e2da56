"""An engine in this process as the target: the same records, without HTTP, text or a second process in between."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from octavo.bench.live import REFRESH_S, Live
from octavo.bench.record import REFUSED, TIMEOUT, RequestRecord
from octavo.bench.workload import BenchRequest
from octavo.engine.core import EngineCore
from octavo.errors import RequestError
from octavo.request import Request, SamplingParams, TokenUpdate

LONGEST_SLEEP_S = 0.05  # between looks at whether to stop


class EngineRun:
    """Runs one workload once on an engine that has nothing else to do.

    A token's moment is when the step that made it has returned. Requests are taken up between steps, as in the engine's own
    process; what they wait for that is part of their latency. Greedy, end of sequence ignored.

    requests:  in order. arrivals, limit: as for ``Driver``. prompts: token ids by index.
    stop:      looked at between steps; true ends the run and leaves what is under way as it is.
    refresh:   called twice a second.
    engine_s:  seconds spent in the engine's steps, once it has run. idle_s: seconds in which there was nothing to do.
    """

    def __init__(
        self,
        core: EngineCore,
        requests: Sequence[BenchRequest],
        arrivals: Sequence[float] | None,
        limit: int,
        prompts: dict[int, list[int]],
        *,
        timeout_s: float,
        live: Live,
        stop: Callable[[], bool] = lambda: False,
        refresh: Callable[[], None] = lambda: None,
    ):
        self.records: list[RequestRecord] = []
        self.engine_s = self.idle_s = 0.0
        self._core = core
        self._arrivals = arrivals
        self._limit = limit
        self._prompts = prompts
        self._timeout_s = timeout_s
        self._live = live
        self._stop = stop
        self._refresh = refresh
        self._waiting = deque(requests)
        self._running: dict[str, RequestRecord] = {}
        self._freed: deque[float] = deque()  # closed loop: since when there is room for one more

    def run(self) -> list[RequestRecord]:
        """Send everything; the records, in order of sending."""
        core, clock = self._core, time.monotonic
        self._start = refreshed = now = clock()
        self._freed.extend([now] * self._limit)
        try:
            while (self._waiting or self._running) and not self._stop():
                self._take_up(now)
                if core.has_work:
                    begin = clock()
                    outputs = core.step()
                    now = clock()
                    self.engine_s += now - begin
                    for update in outputs.updates:
                        self._update(now, update)
                else:
                    self._wait(now)
                    now = clock()
                if now - refreshed >= REFRESH_S:
                    refreshed = now
                    self._expire(now)
                    self._refresh()
        finally:
            core.abort(list(self._running))
        return self.records

    def _take_up(self, now: float) -> None:
        """Everything that is due and has room."""
        while self._waiting and self._freed:
            request = self._waiting[0]
            if self._arrivals is None:
                intended = self._freed[0]
            elif (intended := self._start + self._arrivals[len(self.records)]) > now:
                return
            self._freed.popleft()
            self._waiting.popleft()
            self._add(request, intended)

    def _add(self, request: BenchRequest, intended: float) -> None:
        name = f"bench-{request.index}"
        sent = time.monotonic()
        record = RequestRecord(request.index, request.prompt_tokens, request.output_tokens, intended, sent)
        record.token_source = "server"
        self.records.append(record)
        self._live.sent += 1
        params = SamplingParams(temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True)
        try:
            self._core.add(Request(id=name, prompt=self._prompts[request.index], params=params, arrival=intended))
        except RequestError as error:
            self._fail(record, REFUSED, str(error))
        else:
            self._running[name] = record

    def _update(self, now: float, update: TokenUpdate) -> None:
        record = self._running[update.id]
        if update.tokens:
            record.moments.append(now)
            record.tokens.append(len(update.tokens))
            self._live.pieces += len(update.tokens)
        if update.finish is None:
            return
        del self._running[update.id]
        record.ended, record.finish, record.output_tokens = now, update.finish, sum(record.tokens)
        record.cached_tokens = update.cached
        self._live.done += 1
        self._freed.append(now)

    def _expire(self, now: float) -> None:
        for name, record in list(self._running.items()):
            assert record.sent is not None
            if now - record.sent > self._timeout_s:
                del self._running[name]
                self._core.abort([name])
                self._fail(record, TIMEOUT, f"It took longer than {self._timeout_s:g} s.")

    def _fail(self, record: RequestRecord, kind: str, message: str) -> None:
        record.ended, record.error, record.message = time.monotonic(), kind, message
        self._live.failed += 1
        self._freed.append(record.ended)

    def _wait(self, now: float) -> None:
        """Nothing to compute: until the next arrival, or for a moment."""
        if not self._waiting:
            return
        due = now if self._arrivals is None else self._start + self._arrivals[len(self.records)]
        pause = min(due - now, LONGEST_SLEEP_S)
        if pause > 0:
            time.sleep(pause)
            self.idle_s += time.monotonic() - now
