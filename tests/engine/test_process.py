"""The engine's process and its client: news, aborts, and every way in which either of them can end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.client import EngineClient
from octavo.engine.messages import Outputs
from octavo.errors import EngineDeadError, EngineError, RequestError
from octavo.request import Request, SamplingParams, TokenUpdate
from tests.engine import fake_process as fake

FAKE = (sys.executable, fake.__file__)
LIMIT_S = 20


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await test()

    return asyncio.run(limited())


@asynccontextmanager
async def engine(model: str = "echo", **settings: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(FAKE, **settings)
    await client.start(EngineConfig(model=model))
    try:
        yield client
    finally:
        await client.close()


def request(name: str, prompt: list[int] | None = None, **params: Any) -> Request:
    params = {"max_tokens": 5, **params}
    return Request(id=name, prompt=prompt or [7, 8, 9], params=SamplingParams(**params), arrival=time.monotonic())


async def collect(client: EngineClient, asked: Request) -> list[TokenUpdate]:
    return [update async for update in client.generate(asked)]


def tokens(updates: list[TokenUpdate]) -> list[int]:
    return [token for update in updates for token in update.tokens]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_tokens_arrive_in_order_for_many_requests_at_once() -> None:
    async def test() -> None:
        async with engine() as client:
            asked = [request(f"r{i}", [10 + i, 20 + i, 30 + i], max_tokens=1 + i) for i in range(40)]
            for one, updates in zip(asked, await asyncio.gather(*(collect(client, r) for r in asked)), strict=True):
                length = one.params.max_tokens
                assert tokens(updates) == (one.prompt * 20)[:length]
                assert [u.finish for u in updates] == [None] * (len(updates) - 1) + ["length"]
            assert (client.stats.running, client.stats.kv_usage) == (0, 0.0)

    run(test)


def test_the_settings_reach_the_child_and_its_answer_the_parent() -> None:
    async def test() -> None:
        async with engine() as client:
            assert client.ready is not None
            assert client.ready.effective["core"] == "fake"
            assert client.ready.max_model_len == fake.CONTEXT

    run(test)


def test_gauges_are_up_to_date_when_the_last_update_arrives() -> None:
    async def test() -> None:
        async with engine() as client:
            async for update in client.generate(request("r")):
                busy = update.finish is None
                assert client.stats.running == busy
                assert (client.stats.kv_usage > 0) == busy

    run(test)


def test_leaving_the_iterator_frees_the_request_within_a_step() -> None:
    async def test() -> None:
        seen: list[Outputs] = []
        async with engine(on_outputs=seen.append) as client:
            async with aclosing(client.generate(request("r", max_tokens=900))) as updates:
                async for _ in updates:
                    break
            left_at = len(seen)
            await until(lambda: client.stats.running == 0)
            assert client.stats.kv_usage == 0.0
            assert len(seen) - left_at < 20  # of 900 steps: the drop was not waited out
            assert tokens(await collect(client, request("r"))) == [7, 8, 9, 7, 8]  # the id is free again

    run(test)


def test_cancelling_whoever_waits_frees_the_request() -> None:
    async def test() -> None:
        async with engine() as client:
            waiting = asyncio.create_task(collect(client, request("r", max_tokens=900)))
            await until(lambda: client.stats.running == 1)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            await until(lambda: client.stats.running == 0)

    run(test)


def test_abort_is_answered_by_a_last_update() -> None:
    async def test() -> None:
        async with engine() as client:
            finishes = []
            async for update in client.generate(request("r", max_tokens=900)):
                finishes.append(update.finish)
                await client.abort("r")
            assert finishes[-1] == "abort"
            assert client.stats.running == 0
            await client.abort("r")  # unknown by now: nothing happens
            await client.abort("never seen")
            assert len(await collect(client, request("s"))) > 0

    run(test)


def test_a_slow_reader_gets_its_updates_merged_and_holds_up_nobody() -> None:
    async def test() -> None:
        async with engine() as client:
            async with aclosing(client.generate(request("slow", max_tokens=200))) as slow:
                first = await anext(slow)
                assert len(tokens(await collect(client, request("quick", max_tokens=300)))) == 300
                second = await anext(slow)
            assert second.finish == "length"
            assert first.tokens + second.tokens == ([7, 8, 9] * 100)[:200]

    run(test)


def test_a_refused_request_hurts_no_other() -> None:
    async def test() -> None:
        async with engine() as client:
            other = asyncio.create_task(collect(client, request("other", max_tokens=50)))
            with pytest.raises(RequestError, match="this core refuses it") as refused:
                await collect(client, request("r", seed=fake.REFUSE))
            assert refused.value.param == "seed"
            with pytest.raises(EngineError, match="TypeError: a fault of the core"):
                await collect(client, request("r", seed=fake.BUG))
            assert len(tokens(await other)) == 50

    run(test)


def test_an_id_in_use_is_refused() -> None:
    async def test() -> None:
        async with engine() as client:
            first = asyncio.create_task(collect(client, request("r", max_tokens=50)))
            await until(lambda: client.stats.running == 1)
            with pytest.raises(RequestError, match="already in use"):
                await collect(client, request("r"))
            assert len(tokens(await first)) == 50

    run(test)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (fake.REFUSED, "^model is refused: this core takes any other.$"),
        (fake.BROKEN, "^The engine could not start: KeyError: 'a fault while building'$"),
        (fake.GONE, "^The engine process ended with status 9.$"),
    ],
)
def test_a_child_that_cannot_start_says_why(model: str, sentence: str) -> None:
    async def test() -> None:
        client = EngineClient(FAKE)
        with pytest.raises(EngineDeadError, match=sentence):
            await client.start(EngineConfig(model=model))
        with pytest.raises(EngineDeadError, match=sentence):
            await collect(client, request("r"))

    run(test)


def test_the_real_entry_point_refuses_by_name() -> None:
    async def test() -> None:
        with pytest.raises(EngineDeadError, match="no/such/folder"):
            await EngineClient().start(EngineConfig(model="no/such/folder"))

    run(test)


def test_starting_can_be_cancelled_and_leaves_no_child() -> None:
    async def test() -> None:
        client = EngineClient(FAKE)
        start = asyncio.create_task(client.start(EngineConfig(model=fake.ASLEEP)))
        await until(lambda: len(engines()) == 1)
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start
        assert engines() == []

    run(test)


@pytest.mark.parametrize(
    ("seed", "sentence"),
    [
        (fake.CRASH, "ZeroDivisionError: the core divides by zero"),
        (fake.VANISH, "ended with status 7"),
        (None, "was killed by SIGKILL"),
    ],
)
def test_when_the_engine_dies_everyone_is_told(seed: int | None, sentence: str) -> None:
    async def test() -> None:
        async with engine() as client:
            asked = [asyncio.create_task(collect(client, request(f"r{i}", max_tokens=900))) for i in range(10)]
            await until(lambda: client.stats.running == 10)
            if seed is None:
                (child,) = engines()
                os.kill(child, signal.SIGKILL)
            else:
                asked.append(asyncio.create_task(collect(client, request("last", seed=seed))))
            for task in asked:
                with pytest.raises(EngineDeadError, match=sentence):
                    await task
            assert sentence in (client.dead or "")
            with pytest.raises(EngineDeadError, match=sentence):
                await collect(client, request("later"))

    run(test)


def test_lost_blocks_are_fatal_once_the_engine_is_idle() -> None:
    async def test() -> None:
        async with engine() as client:
            assert len(tokens(await collect(client, request("r", seed=fake.LEAK)))) == 5
            await until(lambda: client.dead is not None)
            assert "a block was lost" in (client.dead or "")

    run(test)


def test_signals_for_the_whole_group_do_not_end_the_engine() -> None:
    async def test() -> None:
        async with engine() as client:
            (child,) = engines()
            os.kill(child, signal.SIGINT)
            os.kill(child, signal.SIGTERM)
            assert len(tokens(await collect(client, request("r")))) == 5
            assert os.getpgid(child) != os.getpgid(0)

    run(test)


def test_closing_ends_the_child_the_waiting_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        async with engine() as client:
            assert list(tmp_path.iterdir()) == []  # gone as soon as both are connected
            waiting = asyncio.create_task(collect(client, request("r", max_tokens=900)))
            await until(lambda: client.stats.running == 1)
            await client.close(reason="Enough.")
            with pytest.raises(EngineDeadError, match=r"Enough\."):
                await waiting
            assert engines() == []

    run(test)


def test_a_temporary_folder_with_a_long_name_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()

    async def test() -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        async with engine() as client:
            assert len(tokens(await collect(client, request("r")))) == 5

    run(test)


def test_the_child_dies_with_its_parent() -> None:
    program = (
        "import asyncio, sys\nfrom octavo.config import EngineConfig\nfrom octavo.engine.client import EngineClient\n"
        "async def main():\n    client = EngineClient(sys.argv[1:])\n    ready = await client.start(EngineConfig(model='echo'))\n"
        "    print(ready.effective['pid'], flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, *FAKE], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
    finally:
        parent.kill()
        parent.wait(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)


def engines() -> list[int]:
    """The living engine processes that this process started."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if alive(child) and Path(fake.__file__).name in command(child)]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process runs: it exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
