"""The official client, unmodified. The scripted engine answers with the prompt's tokens, again and again."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.running import LIMIT_S, Running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=LIMIT_S, max_retries=0) as one:
        yield one


MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße, 世界 🙂!"},
]
# What the template makes of them; special tokens do not show in the text, and <|im_end|> ends the output.
FIRST_TURN = "system\nBe brief."


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", FIRST_TURN)
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_streamed_chat_is_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=60, extra_body={"ignore_eos": True})
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_completion_tokens=60,
        extra_body={"ignore_eos": True},
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    *pieces, last, usage = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in pieces[1:])
    assert all(c.choices[0].finish_reason is None for c in pieces)
    texts = [c.choices[0].delta.content or "" for c in pieces]
    assert "".join(texts) == whole.choices[0].message.content
    assert "世界 🙂" in "".join(texts)
    assert not any("\ufffd" in text for text in texts)  # no half characters
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert all(c.usage is None for c in [*pieces, last])
    assert len({c.id for c in chunks}) == 1


def test_a_stream_reports_usage_only_when_asked(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(c.usage is None for c in chunks)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="abcdefghijklmnopqrstuvwxyz0123456789")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16  # OpenAI's default
    assert answer.choices[0].text.startswith("abcdefgh")
    assert answer.object == "text_completion"


def test_streamed_completion_is_the_same_text(client: openai.OpenAI) -> None:
    prompt = "naïve — 日本語 "
    whole = client.completions.create(model="tiny", prompt=prompt, max_tokens=50)
    chunks = list(client.completions.create(model="tiny", prompt=prompt, max_tokens=50, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]


@pytest.mark.parametrize("prompt", [[10, 11, 12], [[10, 11, 12]]], ids=["ids", "one list of ids"])
def test_a_prompt_as_token_ids(client: openai.OpenAI, prompt: list[int] | list[list[int]]) -> None:
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=3)  # type: ignore[arg-type]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].text == client.completions.create(model="tiny", prompt=[[10, 11, 12]], max_tokens=3).choices[0].text


def test_one_string_in_a_list_is_a_prompt(client: openai.OpenAI) -> None:
    one = client.completions.create(model="tiny", prompt=["xyz"], max_tokens=3)
    assert one.choices[0].text == "xyz"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_just_before_them(client: openai.OpenAI, server: Running, stream: bool) -> None:
    asked = {"model": "tiny", "prompt": "0123456789", "max_tokens": 900, "stop": ["345", "9"], "stream": stream}
    answer = client.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(answer) if stream else [answer]
    assert "".join(c.choices[0].text for c in chunks) == "012"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].stop_reason == "345"
    # The last message comes after the request's memory is free and the gauges say so: no waiting here.
    assert server.metric("num_requests_running") == 0
    assert server.metric("kv_cache_usage_perc") == 0


def test_tokens_up_to_the_stop_string_are_counted_and_no_more(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="0123456789", max_tokens=900, stop="345")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_a_stop_token_is_no_text_and_is_named(client: openai.OpenAI) -> None:
    extra = {"stop_token_ids": [12]}
    answer = client.completions.create(model="tiny", prompt=[10, 11, 12, 13], max_tokens=9, extra_body=extra)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3  # the token itself was computed
    assert answer.choices[0].text == client.completions.create(model="tiny", prompt=[10, 11], max_tokens=2).choices[0].text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == 12  # type: ignore[attr-defined]


def test_special_tokens_can_be_shown(client: openai.OpenAI) -> None:
    shown = client.chat.completions.create(
        model="tiny", messages=MESSAGES, extra_body={"skip_special_tokens": False, "ignore_eos": True}, max_tokens=14
    )
    assert shown.choices[0].message.content is not None
    assert shown.choices[0].message.content.startswith("<|im_start|>system")


def test_models(client: openai.OpenAI) -> None:
    (one,) = client.models.list().data
    assert one.id == "tiny"
    assert one.max_model_len == 1024  # type: ignore[attr-defined]
    assert client.models.retrieve("tiny") == one
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_an_aborted_stream_frees_everything(client: openai.OpenAI, server: Running) -> None:
    steps = server.metric("engine_steps_total")
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=1000, stream=True)
    next(iter(stream))
    assert server.metric("num_requests_running") == 1
    assert server.metric("kv_cache_usage_perc") > 0
    stream.close()
    server.until_idle()
    assert server.metric("engine_steps_total") - steps < 500  # it did not run to its end
    assert server.metric("request_success_total", finished_reason="abort") >= 1


def test_errors_are_the_client_s_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.completions.create(model="tiny", prompt="x", n=2)
    assert unsupported.value.param == "n"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="x", max_tokens=1024)
    assert long.value.code == "context_length_exceeded"
    assert "1024 tokens" in long.value.message
    assert "together 1025" in long.value.message
