"""GET /openapi.json: an OpenAPI 3.1 document, generated from the structs that are decoded and encoded."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server import protocol
from octavo.version import __version__

ERRORS = {
    "400": "A field is wrong, unsupported or missing.",
    "401": "The API key is missing or wrong.",
    "404": "The model, or the path, is not served here.",
    "413": "The body is too large.",
    "500": "The server failed on this request.",
    "503": "The engine is gone.",
}


def document() -> dict[str, Any]:
    """The description of the whole API."""
    operations: list[tuple[str, str, str, Any, Any, Any]] = [
        (
            "post",
            "/v1/chat/completions",
            "Continue a conversation",
            protocol.ChatRequest,
            protocol.ChatResponse,
            protocol.ChatChunk,
        ),
        ("post", "/v1/completions", "Continue a text", protocol.CompletionRequest, *(protocol.CompletionResponse,) * 2),
        ("get", "/v1/models", "The models served", None, protocol.ModelList, None),
        ("get", "/v1/models/{model}", "One model", None, protocol.ModelCard, None),
        ("get", "/health", "Whether the engine runs", None, protocol.Health, None),
        ("get", "/version", "octavo's version", None, protocol.Version, None),
    ]
    structs = [
        protocol.ErrorResponse,
        protocol.WindowRequest,
        *(struct for row in operations for struct in row[3:] if struct is not None),
    ]
    refs, schemas = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    ref = dict(zip(structs, refs, strict=True))
    failure = {"application/json": {"schema": ref[protocol.ErrorResponse]}}
    paths: dict[str, Any] = {
        "/metrics": {
            "get": {
                "summary": "Prometheus metrics",
                "responses": {"200": _answer({"text/plain": {"schema": {"type": "string"}}})},
            }
        },
        "/debug/record": {
            "post": {
                "summary": "What the engine did lately, as a record that octavo trace reads",
                "requestBody": {"required": True, "content": {"application/json": {"schema": ref[protocol.WindowRequest]}}},
                "security": [{}, {"key": []}],
                "responses": {
                    "200": _answer({"application/x-ndjson": {"schema": {"type": "string"}}}),
                    **{status: {"description": ERRORS[status], "content": failure} for status in ("400", "401", "503")},
                },
            }
        },
        "/openapi.json": {
            "get": {
                "summary": "This document",
                "responses": {"200": _answer({"application/json": {"schema": {"type": "object"}}})},
            }
        },
    }
    for method, path, summary, body, answer, events in operations:
        content = {"application/json": {"schema": ref[answer]}}
        if events is not None:  # the schema of one event's data; OpenAPI 3.1 has no word for a sequence of them
            content["text/event-stream"] = {"schema": ref[events]}
        operation: dict[str, Any] = {"summary": summary, "responses": {"200": _answer(content)}}
        if path.startswith("/v1/"):
            operation["security"] = [{}, {"key": []}]
        statuses = ERRORS if body is not None else ["401", "404"] if path.startswith("/v1/") else []
        if path == "/health":
            statuses = ["503"]
        operation["responses"] |= {status: {"description": ERRORS[status], "content": failure} for status in statuses}
        if body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref[body]}}}
        if "{model}" in path:
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "octavo", "version": __version__, "description": "An OpenAI-compatible API."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _answer(content: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Success", "content": content}
