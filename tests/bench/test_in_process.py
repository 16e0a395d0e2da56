"""An engine in this process: exact moments under a clock that each step moves on, nothing left behind, a clean cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.bench.client import in_process
from octavo.bench.client.in_process import EngineRun
from octavo.bench.interrupt import Interrupt
from octavo.bench.live import Live
from octavo.bench.load import Load
from octavo.bench.metrics import measure
from octavo.bench.record import RequestRecord
from octavo.bench.run import run_engine, warmup
from octavo.bench.workload import BenchRequest, Segment
from octavo.engine.core import EngineCore
from octavo.engine.messages import Outputs
from tests.bench.test_metrics import of
from tests.fake_engine import VOCAB, fake_engine

STEP_S = 0.1


class Clock:
    """Stands in for the module ``time``: moves on with every step and every sleep."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def ids(request: BenchRequest) -> list[int]:
    return [(segment.key * 31 + i) % VOCAB for segment in request.segments for i in range(segment.tokens)]


def requests(*lengths: tuple[int, int]) -> list[BenchRequest]:
    return [BenchRequest(i, (Segment(i, prompt),), output) for i, (prompt, output) in enumerate(lengths)]


def run(
    monkeypatch: pytest.MonkeyPatch,
    core: EngineCore,
    asked: Sequence[BenchRequest],
    arrivals: Sequence[float] | None,
    limit: int,
    timeout_s: float = 1000.0,
    stop_at: float = 1e9,
) -> tuple[list[RequestRecord], EngineRun]:
    clock, step = Clock(), core.step

    def slow_step() -> Outputs:
        clock.now += STEP_S
        return step()

    monkeypatch.setattr(in_process, "time", clock)
    monkeypatch.setattr(core, "step", slow_step)
    prompts = {request.index: ids(request) for request in asked}
    made = EngineRun(
        core, asked, arrivals, limit, prompts, timeout_s=timeout_s, live=Live(), stop=lambda: clock.now > stop_at
    )  # fmt: skip
    records = made.run()
    core.check()
    return records, made


def test_closed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, a step a token: A has its 3 after 0.3 s, B its 1 after 0.1; C takes B's place and ends with A."""
    records, made = run(monkeypatch, fake_engine(), requests((5, 3), (5, 1), (5, 2)), None, 2)
    assert [r.intended for r in records] == pytest.approx([50.0, 50.0, 50.1])
    m = measure(records)
    assert m.ttft_s == of((0.1, 0.1, 0.1))
    assert m.itl_s == of((0.1, 0.1, 0.1))
    assert m.e2e_s == of((0.3, 0.1, 0.2))
    assert m.duration_s == pytest.approx(0.3)
    assert m.output_tok_s == pytest.approx(6 / 0.3)
    assert (made.engine_s, made.idle_s) == (pytest.approx(0.3), 0.0)


def test_open_loop_what_a_request_waits_for_the_step_is_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """B is due at 0.05, in the middle of A's first step; C at 1.0, when nothing runs."""
    records, made = run(monkeypatch, fake_engine(), requests((5, 2), (5, 1), (5, 1)), [0.0, 0.05, 1.0], 3)
    assert [r.intended for r in records] == pytest.approx([50.0, 50.05, 51.0])
    assert [r.sent for r in records] == pytest.approx([50.0, 50.1, 51.0])
    assert measure(records).ttft_s == of((0.1, 0.15, 0.1))
    assert made.idle_s == pytest.approx(0.8)


def test_a_request_that_the_engine_refuses_is_an_error_and_the_next_one_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = run(monkeypatch, fake_engine(max_model_len=16), requests((20, 3), (5, 1)), None, 1)
    assert [r.error for r in records] == ["refused", None]
    assert "16" in records[0].message


def test_a_request_that_takes_too_long_is_given_up_and_leaves_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    core = fake_engine()
    records, _ = run(monkeypatch, core, requests((5, 200), (5, 2)), None, 2, timeout_s=2.0)
    assert [r.error for r in records] == ["timeout", None]
    assert not core.has_work


def test_stopping_leaves_nothing_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    core = fake_engine()
    records, _ = run(monkeypatch, core, requests((5, 50), (5, 2)), None, 2, stop_at=50.55)
    assert not core.has_work
    m = measure(records, end=50.6)
    assert (m.completed, m.unfinished) == (1, 1)
    assert m.output_tok_s == pytest.approx((2 + 6) / 0.6)


def test_a_run_begins_with_an_empty_prefix_cache_and_counts_its_own_hits() -> None:
    core = fake_engine(prefix_caching=True, max_model_len=128)
    shared = [BenchRequest(i, (Segment(7, 32), Segment(100 + i, 8)), 2) for i in range(4)]
    load = Load(concurrency=1, warmup=2)
    first = run_engine(core, shared, load, ids, show=False)
    again = run_engine(core, shared, load, ids, show=False)
    assert (first.cached, first.looked_up) == (again.cached, again.looked_up) == (3 * 32, 4 * 40)
    assert first.kv is not None
    assert first.kv.scope == "run"
    assert first.kv.reserved >= first.kv.used > 0
    assert first.client.in_process
    assert first.preemptions == 0


def test_peaks_are_those_of_the_run_alone() -> None:
    core = fake_engine()
    large = run_engine(core, requests((100, 2)), Load(warmup=0), ids, show=False)
    small = run_engine(core, requests((10, 2)), Load(warmup=0), ids, show=False)
    assert large.kv is not None
    assert small.kv is not None
    assert small.kv.reserved < large.kv.reserved


def test_warmup_requests_are_short_and_share_nothing_with_the_workload() -> None:
    asked = [BenchRequest(i, (Segment(0, 1000), Segment(i, 9)), 300) for i in range(3)]
    made = warmup(asked, 5)
    assert len(made) == 5
    assert all(r.prompt_tokens <= 512 and r.output_tokens <= 16 and r.index < 0 for r in made)
    keys = [segment.key for r in made for segment in r.segments]
    assert len({*keys, 0, 1, 2}) == len(keys) + 3
    assert warmup([], 5) == []


def test_an_interruption_before_the_run_sends_nothing() -> None:
    interrupt = Interrupt()
    interrupt.wanted = True
    made = run_engine(fake_engine(), requests((5, 3)), Load(), ids, interrupt=interrupt, show=False)
    assert made.records == []
