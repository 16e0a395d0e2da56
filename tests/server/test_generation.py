"""Generation: updates that were merged on their way count as if they had come one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.messages import Outputs, Stats
from octavo.models.load import open_checkpoint
from octavo.request import Request, SamplingParams, TokenUpdate
from octavo.server.generation import Generation
from octavo.server.metrics import Metrics
from octavo.server.protocol import ChatRequest
from octavo.server.service import Service

EOS = 2


class Script:
    """An engine client whose updates are given."""

    def __init__(self, updates: list[TokenUpdate]):
        self.updates = updates
        self.metrics = Metrics("tiny", Stats)
        self.aborted: list[str] = []
        self.text_times: list[tuple[str, float]] = []

    async def generate(self, request: Request) -> AsyncGenerator[TokenUpdate, None]:
        for update in self.updates:
            self.metrics.on_outputs(Outputs([update], Stats()))
            yield update

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def text_time(self, request_id: str, seconds: float) -> None:
        self.text_times.append((request_id, seconds))


def play(model: Path, updates: list[TokenUpdate], **params: Any) -> tuple[Generation, str, Script]:
    """A generation after these updates, its text, and the engine."""
    engine: Any = Script(updates)
    service = Service(
        engine=engine,
        tokenizer=open_checkpoint(str(model)).tokenizer,
        template=None,
        model="tiny",
        root="tiny",
        context=100,
        vocab=1000,
        defaults={},
        metrics=engine.metrics,
    )
    request = Request(id="r", prompt=[50, 51], params=SamplingParams(**params), arrival=time.monotonic())
    generation = Generation(service, request)
    return generation, asyncio.run(generation.text()), engine


def update(tokens: list[int], finish: str | None = None, stop_token: int | None = None, cached: int = 0) -> TokenUpdate:
    return TokenUpdate(id="r", tokens=tokens, finish=finish, stop_token=stop_token, cached=cached)


@pytest.fixture(scope="module")
def digits(model: Path) -> list[int]:
    return open_checkpoint(str(model)).tokenizer.encode("0123456789", add_special_tokens=False)


def test_tokens_behind_a_stop_string_are_neither_text_nor_counted(model: Path, digits: list[int]) -> None:
    for updates in ([update(digits), update([5, 6]), update([], "abort")], [update(digits, "length")]):
        generation, text, engine = play(model, updates, stop="34")
        assert text == "012"
        assert generation.usage.completion_tokens == 5
        assert (generation.finish_reason, generation.stop_reason) == ("stop", "34")
        assert len(engine.aborted) == (updates[0].finish is None)  # an engine that is through needs no abort
        assert 'octavo:request_generation_tokens_sum{model_name="tiny"} 5.0' in engine.metrics.text().decode()


def test_the_beginning_of_a_stop_string_is_text_if_nothing_follows(model: Path, digits: list[int]) -> None:
    generation, text, engine = play(model, [update(digits[:5]), update(digits[5:6], "length")], stop="56")
    assert text == "012345"
    assert (generation.finish_reason, generation.stop_reason) == ("length", None)
    assert engine.aborted == []


@pytest.mark.parametrize("stop", [None, "x"])
def test_the_model_s_own_end_has_no_reason_and_no_text(model: Path, digits: list[int], stop: str | None) -> None:
    generation, text, _ = play(model, [update([*digits, EOS], "stop")], stop=stop, skip_special_tokens=False)
    assert text == "0123456789"
    assert generation.usage.completion_tokens == 11
    assert (generation.finish_reason, generation.stop_reason) == ("stop", None)


def test_a_stop_token_is_the_reason(model: Path, digits: list[int]) -> None:
    generation, text, _ = play(model, [update(digits, "stop", digits[-1])], stop_token_ids=[digits[-1]])
    assert (text, generation.stop_reason) == ("012345678", digits[-1])


def test_cached_tokens_are_those_of_the_first_admission(model: Path, digits: list[int]) -> None:
    updates = [update(digits[:2], cached=1), update(digits[2:4], "length", cached=2)]
    generation, _, _ = play(model, updates)  # preempted in between, and found more
    assert generation.usage.prompt_tokens_details.cached_tokens == 1


def test_the_engine_hears_once_what_a_request_s_text_took(model: Path, digits: list[int]) -> None:
    _, _, engine = play(model, [update(digits[:2]), update(digits[2:], "length")])
    ((name, seconds),) = engine.text_times
    assert name == "r"
    assert seconds > 0


@pytest.mark.parametrize(("asked", "default", "expected"), [(None, None, None), (None, 16, 16), (None, 200, 98), (7, 16, 7)])
def test_max_tokens_left_out_is_left_to_the_engine(
    model: Path, asked: int | None, default: int | None, expected: int | None
) -> None:
    _, _, engine = play(model, [update([50], "length")])
    service: Any = Service(
        engine=engine, tokenizer=None, template=None, model="m", root="m", context=100, vocab=1000, defaults={}, metrics=None,
    )  # fmt: skip
    request = service.new_request("r", [1, 2], ChatRequest(messages=[]), ("max_tokens", asked), default, "prompt")
    assert request.params.max_tokens == expected
