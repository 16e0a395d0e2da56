"""What goes in and out over HTTP, field by field. ``openapi.py`` describes these structs; ``fields.py`` knows the rest."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

ROLES = ("system", "developer", "user", "assistant")


def _one_of(*names: str) -> Meta:
    return Meta(extra_json_schema={"enum": list(names)})  # checked in code, which can say what is accepted


# ---- requests


class StreamOptions(Struct, kw_only=True):
    """include_usage: a last event with the token counts."""

    include_usage: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """What both endpoints take. Null is the same as leaving a field out.

    temperature, top_p, top_k: left out, they are the model's own (``generation_config.json``), else 1, 1 and all.
    stop:           a string, or up to 16, that end the output and are no part of it.
    stop_token_ids: token ids that do the same. An extension of vLLM's, as are top_k, ignore_eos and skip_special_tokens.
    priority:       lower runs first. An extension of vLLM's.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    max_tokens: int | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ContentPart(Struct, kw_only=True):
    """A part of a message. Several are joined by line breaks."""

    type: Annotated[str, _one_of("text")]
    text: str | UnsetType = UNSET  # parts of other kinds have none; these are refused by their kind


class ChatMessage(Struct, kw_only=True):
    """One message of a conversation. ``developer`` is another word for ``system``; ``name`` reaches the model's template."""

    role: Annotated[str, _one_of(*ROLES)]
    content: str | list[ContentPart]
    name: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions. ``max_tokens`` is the older name of ``max_completion_tokens``; left out: all that fits."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions. prompt: text, token ids, or a list with one of these. max_tokens: 16 where it is left out."""

    prompt: str | list[int | str | list[int]]


class WindowRequest(Struct, kw_only=True):
    """POST /debug/record: the last ``seconds``, or the last ``steps`` steps; one of the two."""

    seconds: float | None = None
    steps: int | None = None


# ---- answers


class PromptTokensDetails(Struct):
    """cached_tokens: how many were taken from the prefix cache."""

    cached_tokens: int


class Usage(Struct):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AssistantMessage(Struct):
    """The model's message."""

    content: str
    role: str = "assistant"


class ChatChoice(Struct, kw_only=True):
    """finish_reason: "stop" or "length". stop_reason: the stop string or stop token id that ended it; else null."""

    index: int = 0
    message: AssistantMessage
    logprobs: None = None
    finish_reason: str
    stop_reason: int | str | None = None


class ChatResponse(Struct, kw_only=True):
    """A whole chat completion."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(Struct, omit_defaults=True):
    """What an event adds to the message."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(Struct, kw_only=True):
    """The part of an event that concerns the message."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET  # in the last chunk only


class ChatChunk(Struct, kw_only=True):
    """An event of a streamed chat completion. usage: only with ``include_usage``, null until the last event."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionChoice(Struct, kw_only=True):
    """As ChatChoice; in a stream ``text`` is what is new, and ``finish_reason`` is null until the end."""

    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class CompletionResponse(Struct, kw_only=True):
    """A whole completion, or an event of a streamed one; there ``usage`` comes only with ``include_usage``."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(Struct, kw_only=True):
    """A model that is served. max_model_len: most tokens of a prompt and its output together."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    max_model_len: int


class ModelList(Struct, kw_only=True):
    """GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class Health(Struct):
    """GET /health."""

    status: str = "ok"


class Version(Struct):
    """GET /version."""

    version: str


class ErrorBody(Struct):
    """message: a sentence. param: the field at fault. code: for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Struct):
    """Every answer that is not a success; in a stream, the event that ends it."""

    error: ErrorBody


encode = msgspec.json.Encoder().encode
