"""From the bytes of an answer to the record of its request: what counts as output, and what as which error."""

from __future__ import annotations

import json

import pytest

from octavo.bench.client.answer import Answer
from octavo.bench.live import Live
from octavo.bench.record import RequestRecord

STREAM = "text/event-stream; charset=utf-8"


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chat(finish: str | None = None, **delta: object) -> dict[str, object]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def text(words: str, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"object": "text_completion", "choices": [{"index": 0, "text": words, "finish_reason": finish, **more}]}


def usage(prompt: int, output: int, **more: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}}


DONE = b"[DONE]"


def answer(*events: object, status: int = 200, content_type: str = STREAM, complete: bool = True) -> RequestRecord:
    """The record after one event at each of the seconds 1, 2, ..., and the end at second 99."""
    record = RequestRecord(0, prompt_tokens=7, asked_tokens=5, intended=0.0)
    made = Answer(record, Live())
    made.head(status, content_type)
    for second, one in enumerate(events, 1):
        made.body(float(second), one if isinstance(one, bytes) and one != DONE else event(one))
    if complete:
        made.complete(99.0)
    return record


def test_a_role_or_an_empty_text_is_no_token() -> None:
    r = answer(
        chat(role="assistant", content=""), chat(content="Hel"), chat(content="lo"), chat(finish="length"), usage(9, 2), DONE
    )
    assert r.moments == [2.0, 3.0]
    assert (r.error, r.ended, r.finish) == (None, 99.0, "length")
    assert (r.prompt_tokens, r.output_tokens, r.token_source) == (9, 2, "server")
    assert answer(text(""), text("a"), text("", "stop"), DONE).moments == [2.0]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "refusal"])
def test_reasoning_is_output(name: str) -> None:
    r = answer(chat(role="assistant"), chat(**{name: "Hm"}), chat(content="4"), chat(finish="stop"), DONE)
    assert r.moments == [2.0, 3.0]


def test_reasoning_under_both_its_names_counts_once() -> None:
    assert answer(chat(reasoning="Hm", reasoning_content="Hm"), chat(finish="stop")).moments == [1.0]


def test_tool_calls_are_output_and_an_empty_list_is_not() -> None:
    call = [{"index": 0, "function": {"arguments": "{"}}]
    assert answer(chat(tool_calls=[]), chat(tool_calls=call), chat(finish="tool_calls")).moments == [2.0]


def test_content_in_parts_is_output() -> None:
    r = answer(chat(content=[{"type": "text", "text": "a"}, {"type": "image"}]), chat(content=[]), chat(finish="stop"))
    assert r.moments == [1.0]


def test_without_usage_pieces_are_counted() -> None:
    r = answer(text("a"), text("b c d"), text("", "length"), DONE)
    assert (r.count, r.output_tokens, r.token_source, r.stated) == (2, None, "chunks", False)


def test_token_ids_or_running_usage_tell_how_many_tokens_a_piece_holds() -> None:
    r = answer(text("a", token_ids=[1, 2]), text("", token_ids=[3]), text("b", token_ids=[4]), text("", "length"), usage(7, 4))
    assert (r.moments, r.tokens, r.stated) == ([1.0, 3.0], [2, 2], True)
    running = [
        text(t, f) | {"usage": {"prompt_tokens": 7, "completion_tokens": n}} for t, n, f in (("a", 1, None), ("bcd", 4, "stop"))
    ]
    r = answer(*running, DONE)
    assert (r.tokens, r.stated, r.count) == ([1, 3], True, 4)


def test_pieces_without_a_count_of_their_own_are_not_stated() -> None:
    r = answer(text("a"), text("bc"), text("", "length"), usage(7, 3), DONE)
    assert (r.tokens, r.stated, r.count) == ([1, 1], False, 3)


def test_cached_prompt_tokens_are_kept_where_the_server_says_them() -> None:
    assert answer(text("a", "stop"), usage(9, 1, prompt_tokens_details={"cached_tokens": 4})).cached_tokens == 4
    assert answer(text("a", "stop"), usage(9, 1, prompt_tokens_details=None)).cached_tokens is None


def test_two_events_in_one_read_have_one_moment() -> None:
    assert answer(event(text("a")) + event(text("b")), text("c", "stop")).moments == [1.0, 1.0, 2.0]


def test_an_event_arrives_when_its_last_byte_does() -> None:
    whole = event(text("a", "stop"))
    assert answer(whole[:20], whole[20:-1], whole[-1:], DONE).moments == [3.0]


def test_an_answer_that_is_no_stream_is_one_piece() -> None:
    body = json.dumps(
        {
            "choices": [{"message": {"content": "Hello you"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3},
        }
    )
    r = answer(body.encode(), content_type="application/json")
    assert (r.streamed, r.moments, r.tokens, r.count, r.tpot) == (False, [99.0], [3], 3, None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "Too many.", "type": "x"}}', "Too many."),
        (b'{"object": "error", "message": "Too many."}', "Too many."),
        (b'{"detail": [{"loc": ["body"], "msg": "Field required"}]}', "Field required"),
        (b"<html>busy</html>", "busy"),
        (b"", ""),
    ],
)
def test_a_status_is_an_error_of_its_own_kind_with_the_servers_words(body: bytes, words: str) -> None:
    r = answer(body, status=429, content_type="application/json")
    assert r.error == "http_429"
    assert r.message.startswith("HTTP 429")
    assert words in r.message


@pytest.mark.parametrize(
    ("events", "error", "words"),
    [
        ([text("a"), {"error": {"message": "out of memory", "code": 500}}], "server_error", "out of memory"),
        ([text("a"), {"object": "error", "message": "gone"}], "server_error", "gone"),
        ([text("a"), b"data: {oops\n\n"], "malformed", "oops"),
        ([text("a"), b"data: [1]\n\n"], "malformed", "[1]"),
        ([text("a"), {"choices": [{"text": 5}]}], "malformed", "text"),
        ([text("a")], "disconnect", "without a finish_reason"),
        ([], "disconnect", "without a finish_reason"),
        ([text("", "stop"), DONE], "no_output", "stop"),
        ([DONE], "no_output", "no output"),
    ],
)
def test_what_goes_wrong_in_a_stream_is_told_by_kind(events: list[object], error: str, words: str) -> None:
    r = answer(*events)
    assert (r.error, r.completed) == (error, False)
    assert words in r.message


def test_comments_and_a_null_error_are_nothing() -> None:
    r = answer(b": ping\n\n", text("a") | {"error": None, "usage": None}, text("", "stop"))
    assert (r.error, r.moments) == (None, [2.0])


def test_after_an_error_nothing_counts_any_more() -> None:
    r = answer({"error": "no"}, text("a"), text("b", "stop"), DONE)
    assert (r.error, r.moments, r.ended) == ("server_error", [], 1.0)


def test_done_alone_ends_a_stream() -> None:
    assert answer(text("a"), text("b"), DONE).error is None
