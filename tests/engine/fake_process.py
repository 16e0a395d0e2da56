"""An engine process whose core follows a script instead of a model: it answers with the prompt, again and again.

``python fake_process.py ADDRESS PARENT CONFIG`` takes the arguments of ``octavo.engine.process``. A request's seed, or the
model's name, asks for a misfortune; see the constants.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from octavo.engine.messages import Outputs, Ready, Stats
from octavo.engine.process import run
from octavo.errors import ConfigError, IntegrityError, RequestError
from octavo.observe.clock import RealClock
from octavo.observe.record import Header, StepRecord
from octavo.observe.recorder import Recorder
from octavo.request import Request, TokenUpdate

# As a request's seed
CRASH, REFUSE, BUG, LEAK, VANISH = 101, 102, 103, 104, 105
# As the model
REFUSED, BROKEN, GONE, ASLEEP = "refused", "broken", "gone", "asleep"

EOS = 2
CAPACITY = 10_000
CONTEXT = 1024
STEP_S = 0.002


class FakeCore:
    """The face of EngineCore."""

    def __init__(self) -> None:
        self._running: dict[str, Request] = {}
        self._sent: dict[str, int] = {}
        self._leak = False
        self._totals = Stats()
        self._recorder = Recorder(RealClock())
        self._recorder.begin(
            Header(
                octavo="test", machine={}, config={}, monotonic=time.monotonic(), unix=time.time(), threads=1, kv_token_bytes=1,
                kv_capacity=CAPACITY, block_size=16, block_tables_bytes=0, max_model_len=CONTEXT,
            )
        )  # fmt: skip

    def add(self, request: Request) -> None:
        seed = request.params.seed
        if seed == REFUSE:
            raise RequestError("seed is 102: this core refuses it.", "seed")
        if seed == BUG:
            raise TypeError("a fault of the core")
        self._leak |= seed == LEAK
        self._running[request.id] = request
        self._sent[request.id] = 0
        self._totals.prompt_tokens += len(request.prompt)

    def abort(self, ids: Iterable[str], stopped: bool = False) -> list[TokenUpdate]:
        return [TokenUpdate(id=i, tokens=[], finish="abort") for i in ids if self._running.pop(i, None)]

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def step(self) -> Outputs:
        start = time.monotonic()
        time.sleep(STEP_S)
        updates = [self._advance(request) for request in self._running.values()]
        for update in updates:
            if update.finish:
                del self._running[update.id]
        self._totals.steps += 1
        self._totals.generation_tokens += len(updates)
        end = time.monotonic()
        step = StepRecord(
            step=self._totals.steps, start=start, submitted=start, done=end, end=end, execute_s=end - start, wait_s=end - start,
            sequences=len(updates), decode_tokens=len(updates), launches=1,
        )  # fmt: skip
        return Outputs(updates, self.stats(), self._recorder.step(step))

    def _advance(self, request: Request) -> TokenUpdate:
        params = request.params
        if params.seed == CRASH:
            raise ZeroDivisionError("the core divides by zero")
        if params.seed == VANISH:
            os._exit(7)
        sent = self._sent[request.id] = self._sent[request.id] + 1
        token = request.prompt[(sent - 1) % len(request.prompt)]
        stops = (token == EOS and not params.ignore_eos) or token in (params.stop_token_ids or ())
        full = sent == params.max_tokens or len(request.prompt) + sent == CONTEXT
        return TokenUpdate(
            id=request.id,
            tokens=[token],
            finish="stop" if stops else "length" if full else None,
            stop_token=token if stops else None,
            cached=3,
            scheduled=request.arrival,
            first_token=time.monotonic(),
        )

    def stats(self) -> Stats:
        stats: Any = msgspec.structs.replace(self._totals)
        stats.running = len(self._running)
        stats.kv_reserved = sum(len(r.prompt) + self._sent[r.id] for r in self._running.values())
        stats.kv_usage = stats.kv_reserved / CAPACITY
        return stats

    def ready(self) -> Ready:
        return Ready({"core": "fake", "pid": str(os.getpid())}, CONTEXT, CAPACITY, 16)

    def window(self, *, seconds: float | None = None, steps: int | None = None) -> bytes:
        return self._recorder.window(seconds=seconds, steps=steps)

    def text_time(self, id: str, seconds: float) -> None:
        self._recorder.text_time(id, seconds)

    def close_record(self) -> None:
        self._recorder.close()

    def check(self) -> None:
        if self._leak:
            raise IntegrityError("a block was lost.")

    def close(self) -> None:
        self._running.clear()


def build(model: str) -> FakeCore:
    if model == REFUSED:
        raise ConfigError("model is refused: this core takes any other.")
    if model == BROKEN:
        raise KeyError("a fault while building")
    if model == GONE:
        os._exit(9)
    if model == ASLEEP:
        time.sleep(60)
    return FakeCore()


if __name__ == "__main__":
    address, parent, config = sys.argv[1:]
    sys.exit(run(address, int(parent), lambda: build(msgspec.json.decode(config)["model"])))  # type: ignore[arg-type,return-value]
