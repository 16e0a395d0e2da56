"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from octavo.errors import RequestError
from octavo.server.generation import Generation
from octavo.server.protocol import CompletionChoice, CompletionRequest, CompletionResponse, encode
from octavo.server.service import Service
from octavo.server.sse import DONE, event

DEFAULT_MAX_TOKENS = 16


def open_completion(service: Service, body: CompletionRequest) -> Generation:
    """The prompt as a generation that waits to be started. Raises RequestError or ApiError."""
    prompt = _single(body.prompt)
    if isinstance(prompt, str):
        prompt = service.encode(prompt, "prompt", add_special_tokens=True)
    request = service.new_request("cmpl", prompt, body, ("max_tokens", body.max_tokens), DEFAULT_MAX_TOKENS, "prompt")
    return Generation(service, request)


def _single(prompt: str | list[int | str | list[int]]) -> str | list[int]:
    """The one prompt that ``prompt`` holds."""
    if isinstance(prompt, str) or all(isinstance(token, int) for token in prompt):
        return cast("str | list[int]", prompt)
    if len({type(one) for one in prompt}) > 1:
        raise RequestError("prompt mixes token ids, strings and lists: one kind is accepted.", "prompt")
    if len(prompt) > 1:
        message = f"prompt holds {len(prompt)} prompts: several in one request are not supported yet; send a request for each."
        raise RequestError(message, "prompt")
    return cast("str | list[int]", prompt[0])


async def whole_completion(service: Service, generation: Generation) -> bytes:
    """The answer in one piece."""
    text = await generation.text()
    choice = CompletionChoice(text=text, finish_reason=generation.finish_reason, stop_reason=generation.stop_reason)
    answer = CompletionResponse(
        id=generation.id, created=int(time.time()), model=service.model, choices=[choice], usage=generation.usage
    )
    return encode(answer)


async def completion_events(service: Service, generation: Generation, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The answer as events: the text as it grows, the reason of the end, the token counts if asked for."""
    chunk = CompletionResponse(id=generation.id, created=int(time.time()), model=service.model, choices=[])
    if include_usage:
        chunk.usage = None

    def piece(choice: CompletionChoice) -> bytes:
        chunk.choices = [choice]
        return event(encode(chunk))

    async with aclosing(generation.texts()) as texts:
        async for text in texts:
            if text:
                yield piece(CompletionChoice(text=text))
    yield piece(CompletionChoice(text="", finish_reason=generation.finish_reason, stop_reason=generation.stop_reason))
    if include_usage:
        chunk.choices, chunk.usage = [], generation.usage
        yield event(encode(chunk))
    yield DONE
