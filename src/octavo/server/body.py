"""From a request's bytes to a struct, with every way in which they can be wrong said by name."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from octavo.errors import RequestError
from octavo.server.errors import ApiError
from octavo.server.fields import check_fields
from octavo.server.protocol import ChatMessage, ContentPart, StreamOptions

T = TypeVar("T")

PATIENCE_S = 60.0  # how long a body may pause on its way
DISCARD_S = 5.0  # how long the rest of a body that is too large is read and dropped, so that the client sees the answer
MOST_DIGITS = 4300  # of an integer, for msgspec as for Python
LONGEST_NUMBER = 20  # characters of a number that a refusal repeats
TYPES = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "null": "null"}
TYPES |= {"array": "an array", "object": "an object"}


class BodyReader:
    """Reads bodies until the server shuts down; then those that are still on their way are given up.

    limit: bytes of the largest body. patience: seconds that a body may pause on its way.
    """

    def __init__(self, limit: int, patience: float = PATIENCE_S):
        self._limit = limit
        self._patience = patience
        self._timers: set[asyncio.Timeout] = set()
        self._closed = False

    async def read(self, request: Request) -> bytes:
        """The whole body. Raises ApiError: 413 where it is too large, and never more than the limit is held; 408 where it does
        not arrive; 503 once the server shuts down."""
        timer = asyncio.timeout(0 if self._closed else self._patience)
        self._timers.add(timer)
        try:
            async with timer:
                return await self._read(request, timer)
        except ClientDisconnect:
            raise ApiError(400, "The request ended before its body was complete.") from None
        except TimeoutError:
            if self._closed:
                raise ApiError(503, "The server shuts down and the request was not complete.", code="shutting_down") from None
            message = f"The request's body is not complete, and no more of it came for {self._patience:g} s."
            raise ApiError(408, message, code="request_timeout") from None
        finally:
            self._timers.discard(timer)

    def close(self) -> None:
        """Give up every body that is not complete, now and from now on."""
        self._closed = True
        for timer in self._timers:
            if not timer.expired():
                timer.reschedule(0)

    async def _read(self, request: Request, timer: asyncio.Timeout) -> bytes:
        loop = asyncio.get_running_loop()
        parts, size = [], 0
        stream = request.stream()
        async for part in stream:
            size += len(part)
            if size > self._limit:
                await _discard(stream)
                raise ApiError(
                    413, f"The request is larger than {self._limit} bytes, the most that is accepted (max_request_bytes)."
                )
            parts.append(part)
            if not self._closed:
                timer.reschedule(loop.time() + self._patience)
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
    except msgspec.ValidationError:
        raise _outsize(body) from None
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


def _outsize(body: bytes) -> Exception:
    """The refusal of a body with a number that is too large to be held, by the first such number's name."""
    try:
        waiting = deque([("", json.loads(body, parse_float=_Number, parse_int=_Number))])
    except (ValueError, RecursionError):
        return ApiError(400, "The body is not valid JSON, and holds a number that is too large.", code="invalid_json")
    while waiting:
        path, value = waiting.popleft()
        if isinstance(value, dict):
            waiting += ((f"{path}.{name}" if path else name, inner) for name, inner in value.items())
        elif isinstance(value, list):
            waiting += ((f"{path}[{i}]", inner) for i, inner in enumerate(value))
        elif isinstance(value, _Number) and value.too_large and path:
            return RequestError(f"{path} is {value.text}: that is too large a number to be held.", path)
    return ApiError(400, "The body holds a number that is too large.", code="invalid_json")


class _Number:
    """A number as JSON spells it."""

    def __init__(self, text: str):
        whole = text.lstrip("-").isdigit()
        self.too_large = len(text.lstrip("-")) > MOST_DIGITS if whole else math.isinf(float(text))
        self.text = text if len(text) <= LONGEST_NUMBER else f"{text[:LONGEST_NUMBER]}..."


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
