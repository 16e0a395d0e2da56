"""From a request's bytes to a struct, with every way in which they can be wrong said by name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from octavo.errors import RequestError
from octavo.server.errors import ApiError
from octavo.server.fields import check_fields
from octavo.server.protocol import ChatMessage, ContentPart, StreamOptions

T = TypeVar("T")

DISCARD_S = 5.0  # how long the rest of a body that is too large is read and dropped, so that the client sees the answer
TYPES = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "null": "null"}
TYPES |= {"array": "an array", "object": "an object"}


async def read_struct(request: Request, kind: type[T], limit: int) -> T:
    """The request's body as ``kind``. Raises ApiError or RequestError."""
    return parse(await read_body(request, limit), kind)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, or ApiError 413 where it is larger than ``limit`` bytes, of which never more than that are held."""
    parts, size = [], 0
    try:
        stream = request.stream()
        async for part in stream:
            size += len(part)
            if size > limit:
                await _discard(stream)
                raise ApiError(413, f"The request is larger than {limit} bytes, the most that is accepted (max_request_bytes).")
            parts.append(part)
    except ClientDisconnect:
        raise ApiError(400, "The request ended before its body was complete.") from None
    return b"".join(parts)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    try:
        async with asyncio.timeout(DISCARD_S):
            async for _ in stream:
                pass
    except (TimeoutError, ClientDisconnect):
        pass


def parse(body: bytes, kind: type[T]) -> T:
    """The struct in ``body``. Raises ApiError where it is no JSON object, RequestError where a field is wrong."""
    try:
        given = msgspec.json.decode(body)
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(given, dict):
        raise ApiError(400, "The body is no JSON object.", code="invalid_json")
    check_fields(kind, given)
    _check_inner_fields(given)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None


def _check_inner_fields(given: dict[str, Any]) -> None:
    """Fields of objects inside the body. Whatever is no object here is refused by its type later."""
    if isinstance(options := given.get("stream_options"), dict):
        check_fields(StreamOptions, options, "stream_options.")
    messages = given.get("messages")
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            check_fields(ChatMessage, message, f"messages[{i}].")
            content = message.get("content")
            for j, part in enumerate(content if isinstance(content, list) else ()):
                if isinstance(part, dict) and part.get("type") == "text":
                    check_fields(ContentPart, part, f"messages[{i}].content[{j}].")


def _refusal(message: str) -> RequestError:
    """msgspec's sentence, with the field first and JSON's names of types."""
    problem, _, at = message.partition(" - at ")
    path = at.strip("`").removeprefix("$").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        name = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(f"{name} is missing.", name)
    if wrong := re.fullmatch(r"Expected `(.*)`, got `(.*)`", problem):
        accepted = " or ".join(TYPES.get(t, t) for t in wrong[1].split(" | "))
        return RequestError(f"{path} is {TYPES.get(wrong[2], wrong[2])}: {accepted} is accepted.", path)
    return RequestError(f"{path}: {problem[:1].lower()}{problem[1:]}.", path)
