"""POST /debug/record: a window of a live engine, through the server and the engine's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.observe.read import Record, read_record
from tests.server.running import Running, running, until


def window(server: Running, **asked: Any) -> Record:
    answer = server.http.post("/debug/record", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return read_record(answer.content)


def complete(server: Running, tokens: int) -> str:
    answer = server.http.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": tokens})
    assert answer.status_code == 200
    return str(answer.json()["id"])


def test_the_last_steps_and_what_the_server_added(model: Path) -> None:
    with running(model, served_model_name="tiny") as server:
        complete(server, 12)
        found = window(server, steps=5)
        assert [step.step for step in found.steps] == [8, 9, 10, 11, 12]
        assert found.header.window == {"steps": 5, "complete": True}
        assert not found.damage
        # What turning tokens into text took arrives once the request is over.
        until(lambda: any(life.text_s for life in window(server, seconds=60).requests.values()))


def test_the_last_seconds_of_an_engine_that_has_done_nothing(model: Path) -> None:
    with running(model, served_model_name="tiny") as server:
        assert window(server, seconds=0.5).steps == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "A window is the last seconds or the last steps: neither is given."),
        ({"second": 5}, "A window is the last seconds or the last steps: neither is given."),
        ({"seconds": 1, "steps": 1}, "A window is the last seconds or the last steps: both are given."),
        ({"steps": 0}, "steps is 0: an integer from 1 to 16384 is accepted, the steps that are kept."),
        ({"steps": 16385}, "steps is 16385: an integer from 1 to 16384 is accepted, the steps that are kept."),
        ({"steps": 1.5}, "steps is a number: an integer or null is accepted."),
        ({"steps": True}, "steps is true or false: an integer or null is accepted."),
        ({"seconds": 0}, "seconds is 0: a number above 0, up to 3600, is accepted."),
        ({"seconds": -1.0}, "seconds is -1: a number above 0, up to 3600, is accepted."),
        ({"seconds": 4000}, "seconds is 4000: a number above 0, up to 3600, is accepted."),
        ({"seconds": "all"}, "seconds is a string: a number or null is accepted."),
        ([], "The body is no JSON object."),
    ],
)
def test_what_is_no_window_is_refused_in_a_sentence(server: Running, body: Any, sentence: str) -> None:
    answer = server.http.post("/debug/record", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, sentence)
    assert server.http.get("/health").status_code == 200


def test_a_body_that_is_no_json_and_a_method_that_is_not_accepted(server: Running) -> None:
    assert server.http.post("/debug/record", content=b"{").status_code == 400
    assert server.http.get("/debug/record").status_code == 405


def test_the_key_is_asked_for(model: Path) -> None:
    with running(model, api_key="secret") as server:
        assert server.http.post("/debug/record", json={"steps": 1}).status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert server.http.post("/debug/record", json={"steps": 1}, headers=key).status_code == 200
