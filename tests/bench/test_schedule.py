"""A whole run against a server with a known schedule, in virtual time: every metric equals the value worked out by hand.

The server is a list of (seconds after the send, what happens). Delays, stalls, chunks of several tokens, errors in mid-stream and
disconnects are all there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from octavo.bench.client import driver as driver_module
from octavo.bench.client.answer import Answer
from octavo.bench.client.driver import Driver
from octavo.bench.live import Live
from octavo.bench.load import arrivals
from octavo.bench.metrics import Metrics, measure
from octavo.bench.record import DISCONNECT, TIMEOUT, RequestRecord
from octavo.bench.workload import BenchRequest, Segment
from tests.bench.test_answer import DONE, STREAM, chat, event, text, usage
from tests.bench.test_metrics import of
from tests.bench.virtual_loop import run_virtually

Script = Sequence[tuple[float, bytes | str]]
END = (0.0, "end")


def run(
    monkeypatch: pytest.MonkeyPatch,
    scripts: Sequence[Script],
    moments: Sequence[float] | None,
    limit: int,
    late: float = 0.0,
    stop: float | None = None,
    busy: float = 0.0,
) -> tuple[list[RequestRecord], Live]:
    """The records when request i is answered by script i. late: between the driver's decision and the send. busy: what the first
    send takes of the client's time, in which it can do nothing else."""
    requests = [BenchRequest(i, (Segment(i, 10),), 4) for i in range(len(scripts))]
    live = Live()
    playing: list[asyncio.Task[None]] = []

    def send(request: BenchRequest, record: RequestRecord, ended: Callable[[], None]) -> None:
        loop, answer = asyncio.get_running_loop(), Answer(record, live)

        def happen(what: bytes | str) -> None:
            if isinstance(what, bytes):
                answer.body(loop.time(), what)
            elif what == "end":
                answer.complete(loop.time())
            else:
                answer.fail(loop.time(), what, "as the script says")
            if answer.over:
                ended()

        async def play() -> None:
            await asyncio.sleep(late)
            record.sent = begin = loop.time()
            answer.head(200, STREAM)
            for delay, what in scripts[request.index]:
                await asyncio.sleep(begin + delay - loop.time())
                happen(what)

        if request.index == 0:
            loop.pass_time(busy)  # type: ignore[attr-defined]
        playing.append(loop.create_task(play()))

    async def main() -> list[RequestRecord]:
        driver = Driver(requests, moments, limit, send, live)
        if stop is not None:
            asyncio.get_running_loop().call_later(stop, driver.stop)
        records = await driver.run()
        for task in playing:
            task.cancel()
        return records

    return run_virtually(monkeypatch, driver_module, main), live


def tokens(first: float, gap: float, count: int) -> Script:
    """A piece for each token, then the count, and the end with the last of them."""
    pieces = [(first + i * gap, event(text("x"))) for i in range(count)]
    last = pieces[-1][0]
    return [*pieces, (last, event(text("", "length"))), (last, event(usage(10, count)) + event(DONE)), (last, "end")]


def approx(value: float) -> float:
    return pytest.approx(value)  # type: ignore[no-any-return]


def test_closed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once. A takes 1.3 s, B 0.5 s; C takes B's place at 0.5 and stalls; D takes A's at 1.3."""
    stalled = [
        (0.2, event(text("x"))),
        (1.2, event(text("x"))),
        (1.2, event(text("", "length")) + event(usage(10, 2))),
        (1.2, "end"),
    ]
    scripts = [tokens(1.0, 0.1, 4), tokens(0.5, 0.0, 1), stalled, tokens(0.3, 0.2, 2)]
    records, live = run(monkeypatch, scripts, None, 2)
    assert [r.intended for r in records] == pytest.approx([0.0, 0.0, 0.5, 1.3])
    m = measure(records)
    assert m.ttft_s == of((1.0, 0.5, 0.2, 0.3))
    assert m.itl_s == of((0.1, 0.1, 0.1, 1.0, 0.2))
    assert m.tpot_s == of((0.1, 1.0, 0.2))
    assert m.e2e_s == of((1.3, 0.5, 1.2, 0.5))
    assert m.duration_s == approx(1.8)
    assert m.output_tok_s == approx(9 / 1.8)
    assert m.total_tok_s == approx(49 / 1.8)
    assert m.requests_s == approx(4 / 1.8)
    assert (live.sent, live.done, live.failed, live.pieces) == (4, 4, 0, 9)


def test_open_loop_latency_counts_from_when_the_request_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two arrivals a second, evenly; every send is 0.25 s late, and the server does not know."""
    records, _ = run(monkeypatch, [tokens(0.1, 0.1, 2)] * 3, arrivals(3, 2.0, float("inf")), 3, late=0.25)
    assert [r.intended for r in records] == pytest.approx([0.5, 1.0, 1.5])
    assert [r.sent for r in records] == pytest.approx([0.75, 1.25, 1.75])
    m = measure(records)
    assert m.ttft_s == of((0.35,) * 3)
    assert m.e2e_s == of((0.45,) * 3)
    assert m.tpot_s == of((0.1,) * 3)
    assert m.duration_s == approx(1.95 - 0.5)


def test_a_client_that_is_busy_does_not_move_the_moment_a_request_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """B is due at 0.2, while the client is busy with A until 0.5."""
    records, _ = run(monkeypatch, [tokens(0.1, 0.0, 1)] * 2, [0.0, 0.2], 2, busy=0.5)
    assert [r.intended for r in records] == pytest.approx([0.0, 0.2])
    assert [r.sent for r in records] == pytest.approx([0.5, 0.5])
    assert measure(records).ttft_s == of((0.6, 0.4))


def test_open_loop_sends_whatever_becomes_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tokens(10.0, 0.0, 1)
    records, _ = run(monkeypatch, [slow] * 4, [0.0, 1.0, 2.0, 3.0], 4)
    assert [r.sent for r in records] == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_waiting_for_room_in_the_client_is_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are due at 0, one at once may be under way."""
    records, _ = run(monkeypatch, [tokens(1.0, 0.0, 1)] * 3, [0.0, 0.0, 0.0], 1)
    assert [r.sent for r in records] == pytest.approx([0.0, 1.0, 2.0])
    assert measure(records).ttft_s == of((1.0, 2.0, 3.0))


def test_errors_free_their_place_and_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts: list[Script] = [
        [
            (0.1, event(chat(role="assistant", content=""))),
            (0.4, event(chat(content="x"))),
            (0.5, event({"error": {"message": "no"}})),
        ],
        [(0.1, event(text("x"))), (0.2, DISCONNECT)],
        [(3.0, TIMEOUT)],
        [(0.1, event(text("x"))), (0.2, b"data: nonsense\n\n")],
        tokens(0.5, 0.5, 2),
    ]
    records, live = run(monkeypatch, scripts, None, 1)
    assert [r.intended for r in records] == pytest.approx([0.0, 0.5, 0.7, 3.7, 3.9])
    m = measure(records)
    assert m.errors == {"disconnect": 1, "malformed": 1, "server_error": 1, "timeout": 1}
    assert (m.ttft_s, m.itl_s, m.e2e_s) == (of((0.5,)), of((0.5,)), of((1.0,)))
    assert m.completed == 1
    assert m.duration_s == approx(4.9)
    assert m.output_tok_s == approx(2 / 4.9)
    assert (live.done, live.failed) == (1, 4)


def test_chunks_of_several_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 tokens, then 4 that come 0.8 s later, then 1; the server says how many. Beside it one that tells the sum alone."""
    stated = [(0.2, event(text("xx", token_ids=[1, 2]))), (1.0, event(text("xxxx", token_ids=[3, 4, 5, 6])))]
    stated += [(1.1, event(text("x", "length", token_ids=[7]))), (1.1, event(usage(10, 7))), (1.1, "end")]
    silent = [
        (0.2, event(text("xx"))),
        (1.0, event(text("xxxx"))),
        (1.1, event(text("x", "length")) + event(usage(10, 7))),
        (1.1, "end"),
    ]
    m = measure(run(monkeypatch, [stated], None, 1)[0])
    assert m.itl_s == of((0.2, 0.2, 0.2, 0.2, 0.1))
    assert m.icl_s == of((0.8, 0.1))
    assert m.tpot_s == of((0.9 / 6,))
    m = measure(run(monkeypatch, [silent], None, 1)[0])
    assert m.itl_s == m.icl_s == of((0.8, 0.1))
    assert (m.tpot_s, m.output_tokens) == (of((0.9 / 6,)), 7)


def test_a_role_is_not_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    script = [(0.1, event(chat(role="assistant", content=""))), (0.7, event(chat(reasoning_content="hm")))]
    script += [(0.9, event(chat(content="x"))), (1.5, event(chat(finish="stop"))), (2.0, event(DONE)), (2.5, "end")]
    m: Metrics = measure(run(monkeypatch, [script], None, 1)[0])
    assert (m.ttft_s, m.itl_s, m.e2e_s) == (of((0.7,)), of((0.2,)), of((0.9,)))
    assert m.duration_s == approx(2.5)
    assert m.token_sources == {"chunks": 1}


def test_stopping_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = run(monkeypatch, [tokens(0.5, 0.5, 4)] * 3, None, 1, stop=2.75)
    m = measure(records, end=2.75)
    assert (m.completed, m.unfinished) == (1, 1)
    assert m.output_tok_s == approx(5 / 2.75)  # of the second one, the token at 2.5 has come


def test_without_requests_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [], None, 1)[0] == []
