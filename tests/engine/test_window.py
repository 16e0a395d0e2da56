"""Windows of the record across the process boundary."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.client import EngineClient
from octavo.errors import EngineDeadError, RequestError
from octavo.observe.read import read_record
from tests.checkpoints import tiny_llama
from tests.engine.test_process import collect, engine, request, run


def test_several_who_ask_at_once_each_get_their_own() -> None:
    async def test() -> None:
        async with engine() as client:
            await collect(client, request("a", max_tokens=9))
            windows = await asyncio.gather(*(client.window(steps=n) for n in (1, 3, 5)), client.window(seconds=60.0))
            assert [len(read_record(window).steps) for window in windows] == [1, 3, 5, 9]

    run(test)


def test_what_is_no_window_never_reaches_the_engine() -> None:
    async def test() -> None:
        async with engine() as client:
            with pytest.raises(RequestError, match="steps is 0"):
                await client.window(steps=0)
            assert len(await collect(client, request("a", max_tokens=2))) > 0

    run(test)


def test_whoever_waits_for_a_window_is_told_of_the_engine_s_death() -> None:
    async def test() -> None:
        async with engine() as client:
            pid = int(client.ready.effective["pid"])  # type: ignore[union-attr]
            os.kill(pid, signal.SIGSTOP)
            asked = asyncio.create_task(client.window(steps=1))
            await asyncio.sleep(0.05)
            left = asyncio.create_task(client.window(steps=1))
            await asyncio.sleep(0.05)
            left.cancel()
            assert not asked.done()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await asked
            with pytest.raises(EngineDeadError):
                await client.window(steps=1)
            client.text_time("a", 1.0)  # too late to matter

    run(test)


def test_a_served_engine_writes_its_record_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    model = tiny_llama(tmp_path / "model")

    async def test() -> None:
        client = EngineClient()
        config = EngineConfig(model=str(model), dtype="bfloat16", threads=1, max_model_len=64, kv_memory=2**24, record=str(path))
        await client.start(config)
        await collect(client, request("a", [5, 6, 7], max_tokens=10, ignore_eos=True))
        client.text_time("a", 0.25)
        await client.close()

    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())
    found = read_record(path)
    assert (found.damage, len(found.steps)) == ([], 10)
    assert (found.requests["a"].output_tokens, found.requests["a"].text_s) == (10, 0.25)
    assert found.header.config["record"] == str(path)
