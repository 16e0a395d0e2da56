"""Service: what is served, and how a request's fields become a request to the engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.engine.client import EngineClient
from octavo.errors import ConfigError, RequestError
from octavo.request import Request, SamplingParams
from octavo.server.errors import ApiError
from octavo.server.metrics import Metrics
from octavo.server.protocol import ModelCard, SamplingFields

if TYPE_CHECKING:
    from octavo.models.chat import ChatTemplate
    from octavo.models.tokenizer import Tokenizer

T = TypeVar("T")

DEFAULTS = ("temperature", "top_p", "top_k")  # what the model's authors may set, as in vLLM
SHORT_BODY = 2000  # bytes of a body that is read and tokenised at once; a longer one would hold up everyone else
ONE_MORE = "and at least one is to be generated"
MAX_PRIORITY = 2**31 - 1


@dataclass(kw_only=True)
class Service:
    """The model, the engine and what the API says of them.

    model:         the model's id in the API.
    root:          the model as the engine was given it.
    context:       most tokens of a prompt and its output together.
    vocab:         token ids are below this.
    defaults:      sampling defaults of the model, of the names in DEFAULTS.
    """

    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model: str
    root: str
    context: int
    vocab: int
    defaults: dict[str, Any]
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))

    def card(self) -> ModelCard:
        """The model as /v1/models shows it."""
        return ModelCard(id=self.model, created=self.created, root=self.root, max_model_len=self.context)

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 unless ``name`` is the model's id, or left out."""
        if name is not None and name != self.model:
            message = f"model is {name!r}: this server serves {self.model!r}; the field may be left out."
            raise ApiError(404, message, "model", "model_not_found")

    def too_long(self, what: str, param: str) -> ApiError:
        """The refusal of a request that the context does not hold. ``what`` would go into it, with the numbers."""
        return ApiError(400, f"This model's context is {self.context} tokens, but {what}.", param, "context_length_exceeded")

    def encode(self, text: str, param: str, add_special_tokens: bool) -> list[int]:
        """The prompt's token ids. Raises ApiError without tokenising where it cannot fit, RequestError where it is no text."""
        least = self.tokenizer.least_tokens(text)
        if least >= self.context:
            raise self.too_long(f"the prompt has at least {least} tokens, {ONE_MORE}", param)
        return self.tokenizer.encode(text, add_special_tokens)

    def new_request(
        self, prefix: str, prompt: list[int], body: SamplingFields, asked: tuple[str, int | None], default: int | None, param: str
    ) -> Request:
        """The request that the engine gets. Raises RequestError or ApiError, all of them the client's fault.

        prefix:  of the request's id.
        asked:   the field for the most new tokens, and its value.
        default: of that field, or what fits if that is less; None: all that fits, which the engine is left to find out.
        param:   the field that holds the prompt.
        """
        if not prompt:
            raise RequestError(f"{param} is empty: at least one token is needed.", param)
        max_tokens = self._max_tokens(len(prompt), *asked, default, param)
        self._check_ids(prompt, param)
        priority = body.priority or 0
        if abs(priority) > MAX_PRIORITY:
            raise RequestError(
                f"priority is {priority}: an integer from {-MAX_PRIORITY} to {MAX_PRIORITY} is accepted.", "priority"
            )
        return Request(
            id=f"{prefix}-{uuid.uuid4().hex}",
            prompt=prompt,
            params=self._params(body, max_tokens),
            arrival=time.monotonic(),
            priority=priority,
        )

    def _check_ids(self, prompt: list[int], param: str) -> None:
        if not 0 <= min(prompt) <= max(prompt) < self.vocab:
            wrong = next(token for token in prompt if not 0 <= token < self.vocab)
            raise RequestError(f"{param} holds the token id {wrong}: this model's are 0 to {self.vocab - 1}.", param)

    def _max_tokens(self, prompt: int, name: str, asked: int | None, default: int | None, param: str) -> int | None:
        room = self.context - prompt
        if asked is not None and asked < 1:
            raise RequestError(f"{name} is {asked}: an integer of at least 1 is accepted.", name)
        if room >= (asked or 1):
            return min(default, room) if asked is None and default is not None else asked
        if asked is None:
            raise self.too_long(f"the prompt has {prompt} tokens, {ONE_MORE}", param)
        raise self.too_long(f"the prompt has {prompt} tokens and {name} is {asked}: together {prompt + asked}", name)

    def _params(self, body: SamplingFields, max_tokens: int | None) -> SamplingParams:
        given = {
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "seed": body.seed,
            "stop": body.stop,
            "stop_token_ids": body.stop_token_ids,
            "ignore_eos": body.ignore_eos,
            "skip_special_tokens": body.skip_special_tokens,
        }
        return SamplingParams(
            **{**self.defaults, **{k: v for k, v in given.items() if v is not None}},
            max_tokens=max_tokens,
        )


async def off_loop(length: int, work: Callable[[], T]) -> T:
    """The result of ``work`` on a body of ``length`` bytes, computed in a thread if it may take long."""
    return work() if length <= SHORT_BODY else await asyncio.to_thread(work)


def sampling_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """The entries of ``generation_config.json`` that are followed. Raises ConfigError where one makes no sense."""
    defaults = {name: generation_config[name] for name in DEFAULTS if generation_config.get(name) is not None}
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise ConfigError(f"generation_config.json: {error}") from None
    return defaults
