"""What one JSON text of an answer says: an event of a stream, or an answer in one piece. Chat and completions alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(slots=True)
class Said:
    """text:    new output: content, reasoning, a refusal or tool calls; empty where there is none (a role, an end).
    tokens:     how many tokens that is, where the server says so (``token_ids``); else None.
    finish:     why the output ended, where it did.
    usage:      prompt tokens, output tokens, prompt tokens from the prefix cache, each None where it is not said; None: no usage.
    error:      what went wrong in the server, as a sentence; None: nothing.
    """

    text: str = ""
    tokens: int | None = None
    finish: str | None = None
    usage: tuple[int | None, int | None, int | None] | None = None
    error: str | None = None


_NOTHING = msgspec.Raw(b"null")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _NOTHING


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[Any] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    object: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NOTHING


_decode = msgspec.json.Decoder(_Chunk).decode
_loose = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read_chunk(data: bytes) -> Said:
    """Raises ValueError where ``data`` is no JSON object, or holds a known field of an unknown type."""
    try:
        chunk = _decode(data)
    except msgspec.DecodeError:
        chunk = _decode_parts(data)
    if bytes(chunk.error) != b"null":
        return Said(error=error_message(bytes(chunk.error)))
    if chunk.object == "error":
        return Said(error=error_message(data))
    said = Said()
    for choice in chunk.choices or ():
        part = choice.delta or choice.message
        said.text += choice.text or ""
        if part is not None:
            said.text += (part.content or "") + (part.reasoning_content or part.reasoning or "") + (part.refusal or "")
            if bytes(part.tool_calls) not in (b"null", b"[]"):
                said.text += bytes(part.tool_calls).decode()
        if choice.token_ids is not None:
            said.tokens = (said.tokens or 0) + len(choice.token_ids)
        said.finish = choice.finish_reason or said.finish
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        cached = details.cached_tokens if details else None
        said.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached)
    return said


def error_message(data: bytes) -> str:
    """The sentence in a server's error, whatever it is wrapped in; shortened."""
    try:
        value: Any = _loose(data)
    except msgspec.DecodeError:
        return data.decode("utf-8", "replace").strip()[:500]
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return (value if isinstance(value, str) else _encode(value).decode())[:500]


def _decode_parts(data: bytes) -> _Chunk:
    """The same where content comes as a list of parts, which some servers send. Raises ValueError where it is not that."""
    try:
        value = _loose(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    choices = value.get("choices") if isinstance(value, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        for name in ("delta", "message"):
            part = choice.get(name) if isinstance(choice, dict) else None
            if isinstance(part, dict) and isinstance(part.get("content"), list):
                texts = (p.get("text") for p in part["content"] if isinstance(p, dict))
                part["content"] = "".join(text for text in texts if isinstance(text, str))
    try:
        return _decode(_encode(value))
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}") from None
