"""A capture of a run against octavo's own server, replayed there, finds as much in the prefix cache as the run did."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.bench.capture.prompt import PromptReader
from octavo.bench.capture.recorder import TrafficRecorder
from octavo.bench.capture.writer import CaptureWriter
from octavo.bench.prompts import PromptMaker
from octavo.bench.suites import suite
from octavo.bench.traces import read_trace
from octavo.bench.workload import BenchRequest
from octavo.models.load import open_checkpoint
from tests.bench.upstream import proxied
from tests.checkpoints import tiny_llama
from tests.server.running import Running

START_S = 120
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORKLOAD = suite("shared-prefix", requests=24, max_model_len=1024)
Send = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
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
    running = Running([*command, "--kv-memory", "64MiB"])
    try:
        running.wait_until_it_serves(START_S)
        yield running
    finally:
        running.close()


def counters(server: Running) -> tuple[float, float]:
    return server.metric("prefix_cache_queries_total"), server.metric("prefix_cache_hits_total")


def captured(server: Running, file: Path, reader: PromptReader, send: Send) -> tuple[float, float]:
    """Tokens that were looked up in the prefix cache, and found there, while ``send`` spoke to the server through a proxy."""
    before = counters(server)

    async def run() -> None:
        recorder = TrafficRecorder(CaptureWriter(file), reader)
        async with proxied(server.url, recorder) as client:
            await send(client)
        recorder.close()

    asyncio.run(run())
    queries, hits = (after - was for after, was in zip(counters(server), before, strict=True))
    return queries, hits


def replayed(server: Running, model: Path, file: Path, seed: int) -> tuple[float, float]:
    """The same of a replay, one request after the other, with contents that the server has not seen."""
    before = counters(server)
    maker = PromptMaker(seed, tokenizer=open_checkpoint(str(model)).tokenizer)
    for request in read_trace(file, max_model_len=1024).requests:
        body = {"model": "tiny", "prompt": maker.ids(request), "max_tokens": 1, "ignore_eos": True}
        assert server.http.post(COMPLETIONS, json=body).status_code == 200
    queries, hits = (after - was for after, was in zip(counters(server), before, strict=True))
    return queries, hits


def test_token_ids_replay_with_the_same_hits(server: Running, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "capture.jsonl"
    maker = PromptMaker(1, tokenizer=open_checkpoint(str(model)).tokenizer)

    async def send(client: httpx.AsyncClient) -> None:
        for request in WORKLOAD.requests:
            answer = await client.post(COMPLETIONS, json={"model": "tiny", "prompt": maker.ids(request), "max_tokens": 1})
            assert answer.status_code == 200

    original = captured(server, file, PromptReader(), send)
    assert 0.5 < original[1] / original[0] < 1
    assert replayed(server, model, file, seed=2) == original


def conversations(server: Running, model: Path, seed: int) -> Send:
    maker = PromptMaker(seed, tokenizer=open_checkpoint(str(model)).tokenizer)

    async def send(client: httpx.AsyncClient) -> None:
        for i, request in enumerate(WORKLOAD.requests):
            system, question = (maker.text(BenchRequest(0, (segment,), 1)) for segment in request.segments)
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            body: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 1}
            if i % 2:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            assert (await client.post(CHAT, json=body)).status_code == 200

    return send


def test_conversations_replay_with_the_same_hits_where_a_tokenizer_is_given(server: Running, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "capture.jsonl"
    checkpoint = open_checkpoint(str(model))
    reader = PromptReader(checkpoint.tokenizer, checkpoint.chat_template)
    original = captured(server, file, reader, conversations(server, model, seed=3))
    assert 0.5 < original[1] / original[0] < 1
    assert replayed(server, model, file, seed=4) == original


def test_without_a_tokenizer_they_replay_with_about_the_same_hits(server: Running, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "capture.jsonl"
    queries, hits = captured(server, file, PromptReader(), conversations(server, model, seed=5))
    queries_again, hits_again = replayed(server, model, file, seed=6)
    assert queries_again == queries  # the server tells how long prompts are
    assert hits_again == pytest.approx(hits, rel=0.1)
