"""The ring and its windows, told from a clock that the test moves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from octavo.errors import RequestError
from octavo.observe import recorder as module
from octavo.observe.read import Record, read_record
from octavo.observe.record import Header, StepRecord
from octavo.observe.recorder import NoRecorder, Recorder
from tests.observe.clock import ManualClock


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def header() -> Header:
    return Header(
        octavo="test", machine={}, config={}, monotonic=1000.0, unix=2000.0, threads=2, kv_token_bytes=8, kv_capacity=100,
        block_size=16, block_tables_bytes=64, max_model_len=50,
    )  # fmt: skip


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recorder(clock: ManualClock) -> Iterator[Recorder]:
    one = Recorder(clock)
    one.begin(header())
    yield one
    one.close()


def steps(recorder: Recorder, clock: ManualClock, first: int, last: int) -> None:
    """Steps of 1 s each, one after the other."""
    for number in range(first, last + 1):
        start = clock.now()
        clock.pass_(1.0)
        recorder.step(StepRecord(step=number, start=start, submitted=start, done=clock.now(), end=clock.now()))


def numbers(record: Record) -> list[int]:
    return [step.step for step in record.steps]


def test_a_window_is_the_steps_that_end_in_it(recorder: Recorder, clock: ManualClock) -> None:
    steps(recorder, clock, 1, 10)
    assert numbers(read_record(recorder.window(seconds=2.5))) == [8, 9, 10]
    assert numbers(read_record(recorder.window(steps=2))) == [9, 10]
    clock.pass_(10.0)
    assert numbers(read_record(recorder.window(seconds=5.0))) == []
    assert numbers(read_record(recorder.window(steps=2))) == [9, 10]
    assert numbers(read_record(recorder.window(steps=100))) == list(range(1, 11))


def test_the_head_of_a_window_is_the_engine_s_and_says_what_was_asked_for(recorder: Recorder, clock: ManualClock) -> None:
    steps(recorder, clock, 1, 1)
    found = read_record(recorder.window(seconds=3.0)).header
    assert (found.threads, found.kv_token_bytes, found.unix) == (2, 8, 2000.0)
    assert found.window == {"seconds": 3.0, "complete": True}


def test_the_ring_keeps_the_latest_and_says_when_a_window_reaches_behind_it(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_STEPS", 4)
    recorder = Recorder(clock)
    recorder.begin(header())
    steps(recorder, clock, 1, 4)
    assert read_record(recorder.window(seconds=100.0)).header.window == {"seconds": 100.0, "complete": True}
    steps(recorder, clock, 5, 6)
    long = read_record(recorder.window(seconds=100.0))
    assert (numbers(long), long.header.window) == ([3, 4, 5, 6], {"seconds": 100.0, "complete": False})
    short = read_record(recorder.window(seconds=3.5))
    assert (numbers(short), short.header.window) == ([3, 4, 5, 6], {"seconds": 3.5, "complete": True})
    recorder.close()


def test_a_window_has_the_whole_life_of_requests_that_were_there(recorder: Recorder, clock: ManualClock) -> None:
    for name in ("before", "across", "running"):
        recorder.arrived(name, clock.now(), 5, 10, 0)
        recorder.scheduled(clock.now(), name, 1, 0, 5, 0)
    steps(recorder, clock, 1, 2)
    recorder.finished(clock.now(), "before", 2, "stop", 3)
    steps(recorder, clock, 3, 6)
    recorder.finished(clock.now(), "across", 6, "stop", 3)
    recorder.arrived("new", clock.now(), 1, None, 0)
    found = read_record(recorder.window(steps=2)).requests
    assert set(found) == {"across", "running", "new"}
    assert (found["across"].queued, found["across"].finished) == (1000.0, 1006.0)
    assert (found["running"].queued, found["running"].finished) == (1000.0, None)


@pytest.mark.parametrize("asked", [{}, {"seconds": 1.0, "steps": 1}, {"steps": 0}, {"steps": 16385}, {"seconds": 0.0}])
def test_what_is_no_window_is_refused(recorder: Recorder, asked: dict[str, int]) -> None:
    with pytest.raises(RequestError):
        recorder.window(**asked)


def test_a_recorder_that_takes_in_nothing_has_no_window() -> None:
    recorder = NoRecorder()
    recorder.begin(header())
    assert recorder.step(StepRecord(step=1, start=0.0, submitted=0.0, done=0.0, end=0.0)) == b""
    with pytest.raises(RequestError):
        recorder.window(steps=1)
