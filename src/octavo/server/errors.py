"""Errors as OpenAI's API words them: ``{"error": {"message", "type", "param", "code"}}``, for everything that can go wrong."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import EngineDeadError, EngineError, RequestError
from octavo.server.protocol import ErrorBody, ErrorResponse

logger = logging.getLogger(__name__)

CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large", 503: "engine_unavailable"}
BODY_INCOMPLETE = (408, 413)
UNEXPECTED = "The server failed on this request; its log says where."


class ApiError(Exception):
    """An answer that is an error. ``param`` names the field at fault, ``code`` tells programs what happened."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code or CODES.get(status)

    def body(self) -> bytes:
        """The error as JSON."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return msgspec.json.encode(ErrorResponse(ErrorBody(self.message, kind, self.param, self.code)))

    def response(self, headers: dict[str, str] | None = None) -> Response:
        """The error as an answer. The connection ends with it where the rest of a request may still be on its way."""
        if self.status in BODY_INCOMPLETE:
            headers = {**(headers or {}), "Connection": "close"}
        return Response(self.body(), self.status, headers, "application/json")


def as_api_error(error: Exception) -> ApiError:
    """What the client is told of any exception. Only what octavo raised on purpose is told in its own words."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), error.param)
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error))
    if isinstance(error, EngineError):
        return ApiError(500, str(error))
    logger.error("A request failed.", exc_info=error)
    return ApiError(500, UNEXPECTED)


async def on_error(_: Request, error: Exception) -> Response:
    """Exception handler for everything that octavo raises."""
    return as_api_error(error).response()


async def on_unexpected(_: Request, error: Exception) -> Response:
    """Exception handler for the rest; the server around the application logs it."""
    return ApiError(500, UNEXPECTED).response()


async def on_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for what the router raises: no such path, no such method."""
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    if error.status_code == 404:
        message = f"{path} is no path of this API; /openapi.json lists them."
    elif error.status_code == 405:
        message = f"{request.method} is not accepted at {path}: {headers.get('Allow', 'nothing')} is."
    else:
        message = f"{HTTPStatus(error.status_code).phrase}: {error.detail}"
    return ApiError(error.status_code, message).response(headers)
