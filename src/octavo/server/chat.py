"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET

from octavo.errors import RequestError
from octavo.server.generation import Generation
from octavo.server.protocol import (
    ROLES,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    Delta,
    encode,
)
from octavo.server.service import Service
from octavo.server.sse import DONE, event


def open_chat(service: Service, body: ChatRequest) -> Generation:
    """The conversation as a generation that waits to be started. Raises RequestError or ApiError."""
    if not body.messages:
        raise RequestError("messages is empty: at least one message is needed.", "messages")
    if len(body.messages) > service.context:
        raise service.too_long(f"messages holds {len(body.messages)} messages, of at least one token each", "messages")
    messages = [_message(i, message) for i, message in enumerate(body.messages)]
    asked = ("max_completion_tokens", body.max_completion_tokens)
    if body.max_completion_tokens is None:
        asked = ("max_tokens", body.max_tokens)
    elif body.max_tokens not in (None, body.max_completion_tokens):
        message = (
            f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens}: one of them is accepted."
        )
        raise RequestError(message, "max_tokens")
    return Generation(service, service.new_request("chatcmpl", _tokens(service, messages), body, asked, None, "messages"))


def _message(index: int, message: ChatMessage) -> dict[str, str]:
    """What the template sees."""
    where = f"messages[{index}]"
    if message.role not in ROLES:
        role = f"{where}.role"
        raise RequestError(f"{role} is {message.role!r}: {', '.join(ROLES[:-1])} or {ROLES[-1]} is accepted.", role)
    content = message.content
    if not isinstance(content, str):
        texts = []
        for j, part in enumerate(content):
            if part.type != "text":
                kind = f"{where}.content[{j}].type"
                raise RequestError(f"{kind} is {part.type!r}: only text is supported.", kind)
            if part.text is UNSET:
                raise RequestError(f"{where}.content[{j}].text is missing.", f"{where}.content[{j}].text")
            texts.append(part.text)
        content = "\n".join(texts)
    seen = {"role": "system" if message.role == "developer" else message.role, "content": content}
    return seen if message.name is None else {**seen, "name": message.name}


def _tokens(service: Service, messages: list[dict[str, str]]) -> list[int]:
    if service.template is None:
        raise RequestError(
            "messages cannot be put together: this model brings no chat template; use /v1/completions.", "messages"
        )
    text = service.template.render(messages, add_generation_prompt=True)
    return service.encode(text, "messages", add_special_tokens=False)  # the template has put them in


async def whole_chat(service: Service, generation: Generation) -> bytes:
    """The answer in one piece."""
    text = await generation.text()
    choice = ChatChoice(
        message=AssistantMessage(text), finish_reason=generation.finish_reason, stop_reason=generation.stop_reason
    )
    answer = ChatResponse(
        id=generation.id, created=int(time.time()), model=service.model, choices=[choice], usage=generation.usage
    )
    return encode(answer)


async def chat_events(service: Service, generation: Generation, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The answer as events: the role, the text as it grows, the reason of the end, the token counts if asked for."""
    chunk = ChatChunk(id=generation.id, created=int(time.time()), model=service.model, choices=[])
    if include_usage:
        chunk.usage = None

    def piece(choice: ChatChunkChoice) -> bytes:
        chunk.choices = [choice]
        return event(encode(chunk))

    started = False
    async with aclosing(generation.texts()) as texts:
        async for text in texts:
            if not started:
                yield piece(ChatChunkChoice(delta=Delta(role="assistant", content="")))
                started = True
            if text:
                yield piece(ChatChunkChoice(delta=Delta(content=text)))
    yield piece(ChatChunkChoice(delta=Delta(), finish_reason=generation.finish_reason, stop_reason=generation.stop_reason))
    if include_usage:
        chunk.choices, chunk.usage = [], generation.usage
        yield event(encode(chunk))
    yield DONE
