"""``octavo serve`` as a user starts it, on a tiny model: many clients at once, some of which leave, in little memory."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import LIMIT_S, Running, events, until

REQUESTS = 300
START_S = 120  # torch is slow to import on a busy machine
COMPLETIONS = "/v1/completions"


def serve(model: Path, *options: str) -> Iterator[Running]:
    command = [
        sys.executable,
        "-m",
        "octavo",
        "serve",
        str(model),
        "--port",
        "0",
        "--served-model-name",
        "tiny",
        "--threads",
        "1",
    ]
    server = Running([*command, *options])
    try:
        server.wait_until_it_serves(START_S)
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module", params=["paged", "contiguous", "hybrid"])
def server(model: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """Room for about 2000 tokens: fewer than 64 sequences of these tests need, so that some wait and some are preempted."""
    layout = {"paged": [], "contiguous": ["--contiguous-reserve", "request"], "hybrid": ["--hybrid-threshold", "40"]}[
        request.param
    ]
    yield from serve(model, "--kv-layout", request.param, *layout, "--kv-memory", "1MiB", "--max-model-len", "256")


async def ask(client: httpx.AsyncClient, number: int) -> None:
    """One client of the crowd: every third leaves at a random moment."""
    chance = random.Random(number)
    length = chance.randint(1, 60)
    body = {"prompt": f"{number} " + "word " * chance.randint(0, 30), "max_tokens": length, "ignore_eos": True, "temperature": 0}
    if number % 3 == 0:
        with suppress(httpx.ReadTimeout, TimeoutError):
            async with asyncio.timeout(chance.uniform(0.05, 2)):
                await client.post(COMPLETIONS, json={**body, "max_tokens": 120})
    elif number % 3 == 1:
        answer = await client.post(COMPLETIONS, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == length
    else:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with client.stream("POST", COMPLETIONS, json={**body, **options}) as answer:
            assert answer.status_code == 200
            found = [one async for one in answer.aiter_lines() if one.startswith("data: ")]
        *_, last, usage, done = events(iter(found))
        assert last["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == length
        assert done == "[DONE]"


def test_nothing_is_lost_in_a_crowd_of_which_a_third_leaves(server: Running) -> None:
    async def crowd() -> None:
        limits = httpx.Limits(max_connections=REQUESTS)
        async with httpx.AsyncClient(base_url=server.url, timeout=240, limits=limits) as client:
            await asyncio.gather(*(ask(client, i) for i in range(REQUESTS)))

    asyncio.run(crowd())
    server.until_idle()
    assert server.metric("request_success_total", finished_reason="length") >= REQUESTS * 2 / 3
    assert server.metric("request_success_total", finished_reason="abort") > 0
    assert server.metric("kv_cache_tokens", state="reserved") == 0
    assert server.http.post(COMPLETIONS, json={"prompt": "x"}).status_code == 200
    server.until_idle()
    assert server.http.get("/health").status_code == 200  # the check of the engine's accounts, made when idle, found no fault


def test_a_stream_and_a_whole_answer_are_the_same_text(server: Running) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Grüße, 世界"}],
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    whole = server.http.post("/v1/chat/completions", json=body).json()
    with server.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        *chunks, done = events(answer.iter_lines())
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 40


def test_a_seed_makes_an_answer_reproducible(server: Running) -> None:
    def text(seed: int) -> str:
        body = {"prompt": "once upon", "seed": seed, "max_tokens": 30, "temperature": 1.5, "ignore_eos": True}
        return str(server.http.post(COMPLETIONS, json=body).json()["choices"][0]["text"])

    assert text(1) == text(1) != text(2)


def test_a_killed_engine_is_told_to_everyone(model: Path) -> None:
    for server in serve(model):

        async def crowd(server: Running = server) -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S, limits=httpx.Limits(max_connections=60)) as client:
                asked = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True}
                waiting = [asyncio.create_task(client.post(COMPLETIONS, json=asked)) for _ in range(50)]
                await asyncio.to_thread(until, lambda: server.metric("num_requests_running") == 50)
                os.kill(server.engine_pid(), signal.SIGKILL)
                async with asyncio.timeout(5):
                    return await asyncio.gather(*waiting)

        for answer in asyncio.run(crowd()):
            assert answer.status_code == 503
            assert "SIGKILL" in json.loads(answer.text)["error"]["message"]
        assert server.http.get("/health").status_code == 503
