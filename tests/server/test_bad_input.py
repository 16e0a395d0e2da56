"""Whatever a client sends: a sentence that names what is wrong, in OpenAI's format, and a server that goes on."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.running import Running, running

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
TEXT = {"prompt": "hello", "max_tokens": 2}


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a refusal, checked for OpenAI's format."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) > 10
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"text"', b"{'a': 1}", b'{"prompt": "\xff"}', b"\xff\xfe\x00", b'{"prompt": "\\ud800"}'),
        *(b'{"prompt": NaN}', b"[" * 100_000, b'{"seed": 1e999', b"1e999"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_json_object(server: Running, body: bytes) -> None:
    for path in (CHAT, COMPLETIONS):
        error = refused(server.http.post(path, content=body))
        assert error["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"seed": 3, "temperature": 1e400}', "temperature"),
        (b'{"seed": -1e400}', "seed"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "seed"),
        (b'{"max_tokens": ' + b"9" * 400 + b', "stop_token_ids": [1, 1e400]}', "stop_token_ids[1]"),
        (b'{"unheard_of": {"a": [[0], [1e400]]}}', "unheard_of.a[1][0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_number_too_large_to_be_held_is_named(server: Running, body: bytes, param: str) -> None:
    for path in (CHAT, COMPLETIONS):
        error = refused(server.http.post(path, content=body))
        assert error["param"] == param
        assert error["message"].startswith(f"{param} is ")
        assert len(error["message"]) < 200


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": "5"}, "max_tokens", "max_tokens is a string: an integer or null is accepted."),
        ({"max_tokens": 2.5}, "max_tokens", "max_tokens is a number"),
        ({"max_tokens": True}, "max_tokens", "max_tokens is true or false"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": -3}, "max_tokens", "max_tokens is -3"),
        ({"max_tokens": 10**30}, "max_tokens", "context is 1024 tokens"),
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"temperature": "hot"}, "temperature", "temperature is a string: a number or null is accepted."),
        ({"top_p": 0}, "top_p", "top_p is 0"),
        ({"top_p": 1.5}, "top_p", "top_p is 1.5"),
        ({"top_k": -2}, "top_k", "top_k is -2"),
        ({"seed": 2**70}, "seed", "seed is"),
        ({"seed": 1.5}, "seed", "seed is a number"),
        ({"stop": ["a", 1]}, "stop[1]", r"stop[1] is an integer: a string is accepted."),
        ({"stop": ""}, "stop", "stop holds an empty string"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "stop_token_ids is -1"),
        ({"stop_token_ids": [10**20]}, "stop_token_ids", "stop_token_ids is"),
        ({"priority": 2**40}, "priority", "priority is"),
        ({"stream": 1}, "stream", "stream is an integer"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true only"),
        ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage", "is an integer"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "not supp",
        ),
        ({"model": 5}, "model", "model is an integer"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_named(server: Running, fields: dict[str, Any], param: str, words: str) -> None:
    for path, good in ((CHAT, HELLO), (COMPLETIONS, TEXT)):
        error = refused(server.http.post(path, json={**good, **fields}))
        assert error["param"] == param
        assert words in error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hello", "messages"),
        ([], "messages"),
        (["hello"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[1].tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    ],
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, str) else "",
)
def test_wrong_messages_are_named(server: Running, messages: Any, param: str) -> None:
    error = refused(server.http.post(CHAT, json={"messages": messages}))
    assert error["param"] == param
    assert param in error["message"]


def test_what_a_message_accepts_is_said_in_full(server: Running) -> None:
    for content in (5, None, {"text": "x"}):
        error = refused(server.http.post(CHAT, json={"messages": [{"role": "user", "content": content}]}))
        assert error["message"].endswith(": a string or an array is accepted.")


@pytest.mark.parametrize("length", [20_000, 10_000_000])
def test_text_that_is_hopelessly_too_long_is_refused_by_its_length(server: Running, length: int) -> None:
    least = -(-length // len("<|endoftext|>"))  # the longest token of the tiny model's vocabulary
    message = {"role": "user", "content": "x" * length}
    for path, body, param in ((COMPLETIONS, {"prompt": "x" * length}, "prompt"), (CHAT, {"messages": [message]}, "messages")):
        error = refused(server.http.post(path, json=body))
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "context is 1024 tokens" in error["message"]
        found = re.search(r"the prompt has at least (\d+) tokens", error["message"])
        assert found
        assert least <= int(found[1]) <= least + 10  # the template adds a few bytes


def test_messages_are_counted_before_they_are_rendered(server: Running) -> None:
    error = refused(server.http.post(CHAT, json={"messages": [{"role": "user", "content": ""}] * 200_000}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "holds 200000 messages" in error["message"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "prompt is null"),
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([[]], "prompt is empty"),
        ([1, "a"], "prompt mixes"),
        (["a", "b"], "prompt holds 2 prompts"),
        ([[1], [2]], "prompt holds 2 prompts"),
        ([1, 2, 999_999], "token id 999999"),
        ([-1], "token id -1"),
        ([10**25], "token id"),
        ([1.5], "prompt[0] is a number"),
        ({"text": "x"}, "prompt is an object"),
        ("x" * 1024, "1024"),
        ([5] * 2000, "the prompt has 2000 tokens"),
    ],
    ids=lambda value: json.dumps(value)[:40] if not isinstance(value, str) else "",
)
def test_wrong_prompts_are_named(server: Running, prompt: Any, words: str) -> None:
    error = refused(server.http.post(COMPLETIONS, json={"prompt": prompt}))
    assert error["param"].startswith("prompt")
    assert words in error["message"]


def test_missing_fields_are_named(server: Running) -> None:
    assert refused(server.http.post(CHAT, json={}))["param"] == "messages"
    assert refused(server.http.post(COMPLETIONS, json={}))["param"] == "prompt"


UNSUPPORTED = {
    "n": 2,
    "best_of": 3,
    "logprobs": 1,
    "echo": True,
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "min_p": 0.1,
    "min_tokens": 3,
    "prompt_logprobs": 1,
    "truncate_prompt_tokens": 10,
    "include_stop_str_in_output": True,
    "use_beam_search": True,
    "response_format": {"type": "json_object"},
    "guided_json": {},
    "guided_regex": "a+",
    "structured_outputs": {"json": {}},
    "logits_processors": ["x"],
    "add_special_tokens": None,
    "suffix": "end",
    "top_logprobs": 2,
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "functions": [{}],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template": "{{ x }}",
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "reasoning_effort": "low",
}
CHAT_ONLY = {"top_logprobs", "tools", "tool_choice", "functions", "add_generation_prompt", "continue_final_message"}
CHAT_ONLY |= {"chat_template", "modalities", "audio", "reasoning_effort"}


@pytest.mark.parametrize("name", [n for n in UNSUPPORTED if UNSUPPORTED[n] is not None])
def test_known_fields_that_are_not_supported_are_refused_by_name(server: Running, name: str) -> None:
    for path, good in ((CHAT, HELLO), (COMPLETIONS, TEXT)):
        if name in (CHAT_ONLY if path == COMPLETIONS else {"suffix"}):
            continue
        error = refused(server.http.post(path, json={**good, name: UNSUPPORTED[name]}))
        assert error["param"] == name
        assert f"{name} is not supported yet" in error["message"]
        assert server.http.post(path, json={**good, name: None}).status_code == 200


def test_what_asks_for_nothing_is_accepted(server: Running) -> None:
    harmless = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "min_p": 0.0,
        "user": "someone",
        "metadata": {"a": "b"},
        "store": False,
    }
    chat = {
        "logprobs": False,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
    }
    assert server.http.post(CHAT, json={**HELLO, **harmless, **chat}).status_code == 200
    assert server.http.post(COMPLETIONS, json={**TEXT, **harmless, "suffix": "", "logprobs": None}).status_code == 200


def test_one_is_not_true(server: Running) -> None:
    assert refused(server.http.post(CHAT, json={**HELLO, "n": True}))["param"] == "n"
    assert refused(server.http.post(CHAT, json={**HELLO, "echo": 0}))["param"] == "echo"


def test_unknown_fields_are_ignored_and_logged_once(server: Running) -> None:
    for _ in range(3):
        assert server.http.post(CHAT, json={**HELLO, "colour_of_the_answer": "blue"}).status_code == 200
    assert server.output.count("colour_of_the_answer") == 1


def test_both_names_of_max_tokens_must_agree(server: Running) -> None:
    error = refused(server.http.post(CHAT, json={**HELLO, "max_tokens": 2, "max_completion_tokens": 3}))
    assert "max_completion_tokens" in error["message"]
    assert server.http.post(CHAT, json={**HELLO, "max_tokens": 2, "max_completion_tokens": 2}).status_code == 200
    assert refused(server.http.post(CHAT, json={**HELLO, "max_tokens": None, "max_completion_tokens": 0}))["param"] == (
        "max_completion_tokens"
    )


def test_a_field_of_the_other_path_is_refused_with_the_name_it_has_here(server: Running) -> None:
    error = refused(server.http.post(COMPLETIONS, json={**TEXT, "max_completion_tokens": 2}))
    assert error["param"] == "max_completion_tokens"
    assert "use max_tokens" in error["message"]
    assert server.http.post(COMPLETIONS, json={**TEXT, "max_completion_tokens": None}).status_code == 200


def test_text_parts_and_developer_messages(server: Running) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    asked = {"messages": [{"role": "developer", "content": parts}], "max_tokens": 100}
    answer = server.http.post(CHAT, json=asked).json()
    assert answer["choices"][0]["message"]["content"] == "system\none\ntwo"


def test_the_context_is_the_bound(server: Running) -> None:
    whole = server.http.post(COMPLETIONS, json={"prompt": [9] * 1000, "max_tokens": 24}).json()
    assert whole["usage"]["total_tokens"] == 1024
    error = refused(server.http.post(COMPLETIONS, json={"prompt": [9] * 1000, "max_tokens": 25}))
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("1000", "25", "1025", "1024"))
    clipped = server.http.post(COMPLETIONS, json={"prompt": [9] * 1020}).json()  # the default of 16 gives way
    assert clipped["usage"]["completion_tokens"] == 4
    message = {"role": "user", "content": "9" * 900}
    full = server.http.post(CHAT, json={"messages": [message], "ignore_eos": True}).json()  # left out: all that fits
    assert full["usage"]["total_tokens"] == 1024


def test_paths_and_methods(server: Running) -> None:
    assert refused(server.http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert refused(server.http.get("/"), 404)["message"].startswith("/ ")
    wrong = server.http.get(CHAT)
    assert "POST" in refused(wrong, 405)["message"]
    assert wrong.headers["allow"] == "POST"
    assert refused(server.http.delete("/v1/models"), 405)["code"] == "method_not_allowed"


def test_the_model_may_be_left_out_but_not_be_another(server: Running) -> None:
    assert server.http.post(COMPLETIONS, json={**TEXT, "model": None}).json()["model"] == "tiny"
    assert server.http.post(COMPLETIONS, json={**TEXT, "model": "tiny"}).status_code == 200
    assert refused(server.http.post(COMPLETIONS, json={**TEXT, "model": "gpt-4"}), 404)["code"] == "model_not_found"
    unknown = refused(server.http.get("/v1/models/gpt-4"), 404)
    assert unknown["param"] == "model"
    assert unknown["message"] == "'gpt-4' is no model of this server: it serves 'tiny'."


def test_a_request_that_breaks_off_hurts_nobody(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1",
        b"\x16\x03\x01\x02\x00\x01",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent)
    assert server.http.post(COMPLETIONS, json=TEXT).status_code == 200


# ---- hypothesis

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)
SUPPORTED = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "priority",
    "stream",
]
NAMES = [*SUPPORTED, "stream_options", "skip_special_tokens", "max_completion_tokens", "messages", "prompt", *UNSUPPORTED]
MISFORTUNES = range(101, 110)  # seeds at which the scripted engine fails on purpose


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    body = {
        "prompt": draw(st.text(max_size=30)),
        "messages": draw(
            st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "x"]), "content": values}), max_size=3)
        ),
    }
    body |= draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=3))
    if not isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = 3
    return body


@given(body=bodies() | values, path=st.sampled_from([CHAT, COMPLETIONS]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_json_makes_the_server_fail(server: Running, body: Any, path: str) -> None:
    if isinstance(body, dict) and body.get("seed") in MISFORTUNES:
        return
    answer = server.http.post(path, content=json.dumps(body).encode())
    assert answer.status_code in (200, 400, 404), (body, answer.text)
    if answer.status_code != 200:
        refused(answer, answer.status_code)


@given(body=st.binary(max_size=200), path=st.sampled_from([CHAT, COMPLETIONS, "/v1/models", "/v1/x"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_make_the_server_fail(server: Running, body: bytes, path: str) -> None:
    assert refused_status(server.http.post(path, content=body)) in (400, 404, 405)


def refused_status(answer: httpx.Response) -> int:
    refused(answer, answer.status_code)
    return answer.status_code


# ---- a key, and a small limit


@pytest.fixture(scope="module")
def guarded(model: Path) -> Iterator[Running]:
    with running(model, api_key="säcret", max_request_bytes=2000) as one:
        yield one


def test_only_the_right_key_opens_v1(guarded: Running) -> None:
    key = {"Authorization": "Bearer säcret".encode()}
    for wrong in (
        {},
        {"Authorization": "Bearer secret"},
        {"Authorization": "säcret".encode()},
        {"Authorization": b"Basic s\xff"},
    ):
        answer = guarded.http.post(COMPLETIONS, json=TEXT, headers=wrong)
        assert refused(answer, 401)["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert refused(guarded.http.get("/v1/models"), 401)
    assert refused(guarded.http.get("/v1/nothing"), 401)
    assert guarded.http.post(COMPLETIONS, json=TEXT, headers=key).status_code == 200
    assert guarded.http.get("/v1/models", headers=key).status_code == 200
    for open_path in ("/health", "/metrics", "/version", "/openapi.json"):
        assert guarded.http.get(open_path).status_code == 200


def test_a_body_that_is_too_large_is_refused(guarded: Running) -> None:
    key = {"Authorization": "Bearer säcret".encode()}
    room = 2000 - len(json.dumps({"prompt": "", "max_tokens": 1}))
    fits = json.dumps({"prompt": " " * room, "max_tokens": 1}).encode()
    assert len(fits) == 2000
    assert guarded.http.post(COMPLETIONS, content=fits, headers=key).json()["error"]["code"] == "context_length_exceeded"
    error = refused(guarded.http.post(COMPLETIONS, content=fits + b" ", headers=key), 413)
    assert "2000 bytes" in error["message"]
    assert refused(guarded.http.post(COMPLETIONS, content=b" " * 5_000_000, headers=key), 413)["code"] == "request_too_large"

    def pieces() -> Iterator[bytes]:  # sent in chunks: no Content-Length to go by
        for _ in range(50):
            yield b" " * 1000

    assert refused(guarded.http.post(COMPLETIONS, content=pieces(), headers=key), 413)
    assert guarded.http.post(COMPLETIONS, json=TEXT, headers=key).status_code == 200
