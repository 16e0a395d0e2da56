"""What a caller asks for and what comes back: SamplingParams, Request, TokenUpdate, RequestOutput."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from octavo.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 1024
MAX_SEED = 2**63 - 1
# Fields of SamplingParams that scripts written for vLLM pass, and that have no effect here yet.
NOT_YET = frozenset({
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "min_tokens", "bad_words",
    "include_stop_str_in_output", "logprobs", "prompt_logprobs", "detokenize", "spaces_between_special_tokens", "logit_bias",
    "truncate_prompt_tokens",
})  # fmt: skip


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How the next token is chosen and when to stop. Names and defaults are vLLM's.

    temperature:         0 is greedy; otherwise logits are divided by it.
    top_p:               keep the smallest set of tokens whose probabilities sum to at least this.
    top_k:               keep this many most likely tokens; 0 or -1 keeps all.
    seed:                makes this request's draws reproducible, whatever it is batched with.
    max_tokens:          at most this many new tokens; None: as many as the context holds.
    stop:                strings that end the output; none of them is part of it.
    stop_token_ids:      token ids that end the output.
    ignore_eos:          go on past the model's end-of-sequence token.
    skip_special_tokens: leave special tokens out of the text.

    The fields after these are vLLM's, too; any value but the default is refused, since they have no effect yet.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        self._check_unsupported()
        _number("temperature", self.temperature, 0.0, float("inf"))
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p is 0: it must be above 0 and at most 1.", "top_p")
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        if self.seed is not None:
            _integer("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r}: True or False is accepted.", name)
        if not (self.stop is None or isinstance(self.stop, (str, list, tuple))):
            raise RequestError(f"stop is {self.stop!r}: a string or a list of strings is accepted.", "stop")
        if not all(isinstance(s, str) and s for s in self.stop_strings):
            raise RequestError("stop holds an empty string or something that is not a string.", "stop")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise RequestError(f"stop holds {len(self.stop_strings)} strings: at most {MAX_STOP_STRINGS} are accepted.", "stop")
        self._check_stop_tokens()

    def _check_stop_tokens(self) -> None:
        tokens = self.stop_token_ids
        if tokens is None:
            return
        if not isinstance(tokens, (list, tuple)) or len(tokens) > MAX_STOP_TOKENS:
            what = f"{len(tokens)} ids" if isinstance(tokens, (list, tuple)) else repr(tokens)
            raise RequestError(
                f"stop_token_ids is {what}: a list of at most {MAX_STOP_TOKENS} ids is accepted.", "stop_token_ids"
            )
        for token in tokens:
            _integer("stop_token_ids", token, 0, 2**31 - 1)

    def _check_unsupported(self) -> None:
        names = self.__struct_fields__
        defaults = self.__struct_defaults__
        for name, default in zip(names, defaults, strict=True):  # every field has a default
            value = getattr(self, name)
            if name in NOT_YET and value != default and value not in (None, [], {}):
                raise RequestError(f"{name} is {value!r}: not supported yet; leave it out, or at {default!r}.", name)

    @property
    def stop_strings(self) -> list[str]:
        """``stop`` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken: temperature 0, or only one token is kept."""
        return self.temperature == 0.0 or self.top_k == 1


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high or value == float("inf"):
        raise RequestError(f"{name} is {value!r}: a number of at least {low:g}{_up_to(high)} is accepted.", name)


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} is {value!r}: an integer from {low} to {high} is accepted.", name)


def _up_to(high: float) -> str:
    return "" if high == float("inf") else f" and at most {high:g}"


class Request(msgspec.Struct, kw_only=True, frozen=True, array_like=True):
    """A request as the engine sees it: token ids, never text. Crosses the process boundary.

    arrival: seconds of ``time.monotonic()``, which all processes of a Linux machine share.
    priority: lower runs first; ties are first come, first served.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    arrival: float
    priority: int = 0


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the caller left


class TokenUpdate(msgspec.Struct, kw_only=True, array_like=True):
    """News of one request from one step.

    finish:      None while it goes on; otherwise a ``FinishReason`` value. Its blocks are free by the time this is sent.
                 With "stop" the last of ``tokens`` is what ended it.
    stop_token:  the one of ``stop_token_ids`` that ended it; None where the model's own end-of-sequence token did.
    cached:      prompt tokens found in the prefix cache when the request was last admitted.
    scheduled, first_token: moments, seconds of ``time.monotonic()``; 0.0 where they lie ahead.
    """

    id: str
    tokens: list[int]
    finish: str | None = None
    stop_token: int | None = None
    cached: int = 0
    scheduled: float = 0.0
    first_token: float = 0.0


@dataclass(slots=True)
class RequestMetrics:
    """Moments of a request's life, in seconds of ``time.monotonic()``; 0.0 where it did not happen (yet)."""

    arrival: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(slots=True)
class CompletionOutput:
    """One continuation of a prompt."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it

    def finished(self) -> bool:
        """True once no more tokens will come."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what was generated for it. Fields are vLLM's."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0  # prompt tokens whose keys and values came from the prefix cache
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
