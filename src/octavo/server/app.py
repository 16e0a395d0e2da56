"""The routes: from a path to what answers there."""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import OctavoError, RequestError
from octavo.server.body import BodyReader, parse
from octavo.server.chat import chat_events, open_chat, whole_chat
from octavo.server.completions import completion_events, open_completion, whole_completion
from octavo.server.errors import ApiError, on_error, on_http_error, on_unexpected
from octavo.server.generation import Generation
from octavo.server.openapi import document
from octavo.server.protocol import (
    ChatRequest,
    CompletionRequest,
    Health,
    ModelList,
    SamplingFields,
    Version,
    WindowRequest,
    encode,
)
from octavo.server.service import Service, off_loop
from octavo.server.sse import EventStream, unless_disconnected
from octavo.version import __version__

Body = TypeVar("Body", bound=SamplingFields)
Open = Callable[[Service, Body], Generation]
Whole = Callable[[Service, Generation], Awaitable[bytes]]
Events = Callable[[Service, Generation, bool], AsyncGenerator[bytes, None]]

CLIENT_LEFT = 499  # nobody reads it
RECORD_TYPE = "application/x-ndjson"  # a JSON value on each line
RECORD_HEADERS = {"Content-Disposition": 'attachment; filename="octavo-record.jsonl"'}
GUARDED = ("/v1", "/debug")  # paths that the key is asked for


def create_app(service: Service, api_key: str | None, bodies: BodyReader) -> Starlette:
    """The ASGI application. It neither starts nor ends the engine."""
    specification = encode(document())

    async def chat(request: Request) -> Any:
        return await _generate(request, ChatRequest, open_chat, whole_chat, chat_events)

    async def completions(request: Request) -> Any:
        return await _generate(request, CompletionRequest, open_completion, whole_completion, completion_events)

    async def _generate(request: Request, kind: type[Body], open: Open[Body], whole: Whole, events: Events) -> Any:
        data = await bodies.read(request)
        body = await off_loop(len(data), partial(parse, data, kind))
        service.engine.check_alive()
        service.check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise RequestError("stream_options takes effect with stream=true only: leave it out.", "stream_options")

        async def generation() -> Generation:
            return await off_loop(len(data), partial(open, service, body))

        async def opened() -> AsyncGenerator[bytes, None]:
            options = body.stream_options
            include_usage = bool(options and options.include_usage)
            return events(service, await generation(), include_usage)

        async def finished() -> bytes:
            return await whole(service, await generation())

        if body.stream:
            stream = await unless_disconnected(request.receive, opened())
            return _left() if stream is None else EventStream(stream)
        answer = await unless_disconnected(request.receive, finished())
        return _left() if answer is None else _json(answer)

    async def models(_: Request) -> Response:
        return _json(encode(ModelList(data=[service.card()])))

    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        if name != service.model:
            message = f"{name!r} is no model of this server: it serves {service.model!r}."
            raise ApiError(404, message, "model", "model_not_found")
        return _json(encode(service.card()))

    async def health(_: Request) -> Response:
        service.engine.check_alive()
        return _json(encode(Health()))

    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def record(request: Request) -> Response:
        asked = parse(await bodies.read(request), WindowRequest)
        found = await unless_disconnected(request.receive, service.engine.window(seconds=asked.seconds, steps=asked.steps))
        return _left() if found is None else Response(found, media_type=RECORD_TYPE, headers=RECORD_HEADERS)

    async def version(_: Request) -> Response:
        return _json(encode(Version(__version__)))

    async def openapi(_: Request) -> Response:
        return _json(specification)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", model),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/debug/record", record, methods=["POST"]),
            Route("/version", version),
            Route("/openapi.json", openapi),
        ],
        middleware=[Middleware(_Authentication, key=api_key)] if api_key is not None else [],
        exception_handlers={
            HTTPException: on_http_error,
            ApiError: on_error,
            OctavoError: on_error,
            Exception: on_unexpected,
        },
    )


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _left() -> Response:
    return Response(status_code=CLIENT_LEFT)


class _Authentication:
    """Lets a request for one of the GUARDED paths pass if it brings the key; everything else is open, as in vLLM."""

    def __init__(self, app: ASGIApp, key: str):
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED) and not self._admitted(scope):
            error = ApiError(401, "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'.")
            await error.response({"WWW-Authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _admitted(self, scope: Scope) -> bool:
        value = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        scheme, _, token = value.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key)
