"""Metrics: what is counted, once and when, told from a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.engine.messages import Outputs, Stats
from octavo.request import Request, SamplingParams, TokenUpdate
from octavo.server.metrics import ERROR, Metrics, at_rest

PROMPT = [5] * 7


class Scene:
    """Metrics, an engine's figures and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 100.0
        self.stats = Stats()
        monkeypatch.setattr("octavo.server.metrics.time", SimpleNamespace(monotonic=lambda: self.now))
        self.metrics = Metrics("m", lambda: self.stats)

    def start(self, **params: Any) -> None:
        self.metrics.started(Request(id="r", prompt=PROMPT, params=SamplingParams(**params), arrival=self.now))

    def update(self, tokens: list[int], finish: str | None = None, after: float = 1.0) -> None:
        self.now += after
        self.metrics.on_outputs(Outputs([TokenUpdate(id="r", tokens=tokens, finish=finish, scheduled=100.5)], self.stats))

    def figure(self, name: str, labels: str = 'model_name="m"') -> float:
        (line,) = (line for line in self.metrics.text().decode().splitlines() if line.startswith(f"octavo:{name}{{{labels}}}"))
        return float(line.split()[-1])


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_what_was_computed_behind_a_stop_string_is_no_part_of_the_request(scene: Scene) -> None:
    scene.start(stop="x")
    scene.update([1])
    scene.update([2, 3])  # the 2 completes the stop string
    scene.update([4])
    scene.update([], "abort")
    scene.metrics.finished("r", "stop", 2)
    assert scene.figure("request_generation_tokens_sum") == 2
    assert scene.figure("e2e_request_latency_seconds_sum") == 2
    assert scene.figure("request_decode_time_seconds_sum") == 1
    assert scene.figure("request_time_per_output_token_seconds_sum") == 1


def test_a_prompt_is_counted_once_and_whole(scene: Scene) -> None:
    scene.stats = Stats(prompt_tokens=3)  # the prefix cache held the rest
    scene.start()
    assert scene.figure("prompt_tokens_total") == 0
    for finish in (None, "length"):
        scene.update([1], finish)
    scene.metrics.finished("r", "length", 2)
    assert scene.figure("prompt_tokens_total") == 7
    assert scene.figure("prefill_tokens_computed_total") == 3


@pytest.mark.parametrize(("reason", "prompts"), [("abort", 7), (ERROR, 0)])
def test_an_end_before_the_first_token(scene: Scene, reason: str, prompts: int) -> None:
    scene.start()
    scene.metrics.finished("r", reason, 0)
    assert scene.figure("request_success_total", f'finished_reason="{reason}",model_name="m"') == 1
    assert scene.figure("prompt_tokens_total") == prompts
    assert scene.figure("e2e_request_latency_seconds_count") == 0


def test_what_the_engine_did_not_take_counts_as_nothing(scene: Scene) -> None:
    scene.start()
    assert scene.metrics.under_way == 1
    scene.metrics.refused("r")
    scene.metrics.finished("r", "abort", 0)
    assert scene.metrics.under_way == scene.figure("prompt_tokens_total") == 0
    assert scene.figure("request_success_total", 'finished_reason="abort",model_name="m"') == 0


def test_an_engine_that_is_gone_holds_nothing_and_has_done_what_it_did() -> None:
    gauges = {"running": 1, "waiting": 2, "kv_usage": 0.5, "kv_used": 3, "kv_reserved": 4}
    gauges |= {"kv_wasted_inside": 5, "kv_wasted_outside": 6, "kv_shared": 7}
    assert at_rest(Stats(**gauges, steps=8, prompt_tokens=9)) == Stats(steps=8, prompt_tokens=9)  # type: ignore[arg-type]
