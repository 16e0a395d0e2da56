"""LLM: offline generation in this process, call-compatible with vLLM's."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from tqdm import tqdm

from octavo.config import EngineConfig, from_mapping
from octavo.engine.build import build_engine
from octavo.engine.text import TextStream
from octavo.errors import ConfigError, RequestError
from octavo.models.load import open_checkpoint
from octavo.models.tokenizer import Tokenizer
from octavo.request import CompletionOutput, FinishReason, Request, RequestMetrics, RequestOutput, SamplingParams, TokenUpdate


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


Prompt = str | TokensPrompt | TextPrompt
Message = dict[str, Any]


class LLM:
    """A model, ready to generate. Keyword arguments are the settings of ``EngineConfig``; unknown ones are refused by name.

    >>> llm = LLM(model="smollm2-135m", max_model_len=2048)
    >>> llm.generate(["The capital of France is"], SamplingParams(temperature=0))[0].outputs[0].text
    """

    def __init__(self, model: str | Path = EngineConfig.model, **settings: Any):
        self._start(from_mapping(EngineConfig, {"model": model, **settings}))

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLM:
        """The same from settings that are put together already."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: EngineConfig) -> None:
        self.config = config
        self._checkpoint = open_checkpoint(config.model)
        self.core = build_engine(self.config, self._checkpoint)
        self._ids = itertools.count()
        self._live: dict[str, _Live] = {}

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._checkpoint.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: list[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt; results come in the order of the prompts.

        prompts: text, {"prompt": text} or {"prompt_token_ids": ids}; one or a list.
        sampling_params: one for all, or one for each prompt; default: ``SamplingParams()``.
        priority: one for each prompt, lower first.
        Raises RequestError before anything is computed if one of them can never be served.
        """
        if isinstance(prompts, (str, dict)):
            prompts = [prompts]
        if not isinstance(prompts, Iterable):
            raise RequestError(f"prompts is {prompts!r:.80}: a prompt, or a list of prompts, is accepted.", "prompt")
        prompts = list(prompts)
        params = _spread(
            "sampling_params", SamplingParams() if sampling_params is None else sampling_params, len(prompts), SamplingParams
        )
        ranks = _spread("priority", 0 if priority is None else priority, len(prompts), int)
        return self._run([self._open(*one) for one in zip(prompts, params, ranks, strict=True)], use_tqdm)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Render one conversation, or several, through the model's chat template and generate the next message.

        messages: ``[{"role": "user", "content": "..."}]`` or a list of such lists. Raises RequestError where the template
        refuses them, ConfigError where the model brings no template.
        """
        if not isinstance(messages, list) or not messages:
            raise RequestError(
                f"messages is {messages!r:.80}: a list of messages, or a list of such lists, is accepted.", "messages"
            )
        several = cast(list[list[Message]], messages if isinstance(messages[0], list) else [messages])
        return self.generate([self.render(one, add_generation_prompt) for one in several], sampling_params, use_tqdm)

    def render(self, messages: list[Message], add_generation_prompt: bool = True) -> TokensPrompt:
        """A conversation as the prompt that the model's chat template makes of it. Errors as for ``chat``."""
        template = self._checkpoint.chat_template
        if template is None:
            raise ConfigError(f"{self.config.model} brings no chat template: use generate.")
        text = template.render(messages, add_generation_prompt=add_generation_prompt)
        return {"prompt_token_ids": self.get_tokenizer().encode(text, add_special_tokens=False)}

    def tokens(self, text: str) -> TokensPrompt:
        """A text as the prompt that ``generate`` makes of it."""
        return {"prompt_token_ids": self.get_tokenizer().encode(text)}

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Continue one prompt and yield its output as it grows, the same object each time. Leaving the loop aborts it."""
        yield from self._steps([self._open(prompt, sampling_params or SamplingParams(), 0)])

    # ---- how it runs

    def _open(self, prompt: Prompt, params: SamplingParams, priority: int) -> _Live:
        text, ids = self._read(prompt)
        now = self.core.clock.now()
        request = Request(id=str(next(self._ids)), prompt=ids, params=params, arrival=now, priority=priority)
        return _Live(request, text, TextStream(self.get_tokenizer(), params, ids))

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """A prompt's text, where it has one, and its token ids. Raises RequestError for what is no prompt."""
        if isinstance(prompt, str):
            return prompt, self.get_tokenizer().encode(prompt)
        known = {"prompt", "prompt_token_ids"}
        if not isinstance(prompt, dict) or not prompt.keys() & known or prompt.keys() - known:
            raise RequestError(
                f"a prompt is {prompt!r:.80}: text, {{'prompt': text}} or {{'prompt_token_ids': ids}} is accepted.", "prompt"
            )
        fields = cast(dict[str, Any], prompt)
        text, ids = fields.get("prompt"), fields.get("prompt_token_ids")
        if ids is None and isinstance(text, str):
            return text, self.get_tokenizer().encode(text)
        if not isinstance(ids, (list, tuple)) or not all(type(token) is int for token in ids):
            raise RequestError("prompt_token_ids is no list of integers.", "prompt")
        return text, list(ids)

    def _run(self, requests: list[_Live], use_tqdm: bool) -> list[RequestOutput]:
        with tqdm(total=len(requests), desc="Generating", unit="req", disable=not use_tqdm) as bar:
            for output in self._steps(requests):
                bar.update(output.finished)
        return [request.output for request in requests]

    def _steps(self, requests: list[_Live]) -> Iterator[RequestOutput]:
        """Run the requests to their end; yields a request's output whenever something was added to it.

        Several may be under way at once, each taking its turn: whoever steps serves the others as well.
        """
        changed: deque[_Live] = deque()
        pending: dict[str, _Live] = {}
        try:
            for request in requests:
                self.core.add(request.request)
                request.changed = changed
                pending[request.request.id] = self._live[request.request.id] = request
            while pending:
                if not changed:
                    self._step()
                while changed:
                    request = changed.popleft()
                    request.queued = False
                    if request.output.finished:
                        del pending[request.request.id]
                    yield request.output
        finally:  # an interrupt, a refused request, a caller who left: nothing stays behind
            self.core.abort(list(pending))
            for name in pending:
                self._live.pop(name, None)
            self.core.settle()

    def _step(self) -> None:
        for update in self.core.step().updates:
            request = self._live[update.id]
            request.take(update, self.core.clock.now())
            if not request.queued:
                request.queued = True
                request.changed.append(request)
            if request.output.finished:
                del self._live[update.id]
                self.core.abort([update.id], stopped=True)  # a stop string: the engine does not know yet
                self.core.text_time(update.id, request.text_s)


class _Live:
    """A request under way and the output that grows for it."""

    def __init__(self, request: Request, prompt: str | None, text: TextStream):
        self.request = request
        self.text = text
        self.completion = CompletionOutput()
        self.changed: deque[_Live] = deque()  # of whoever waits for it
        self.queued = False  # in there
        self.text_s = 0.0  # spent on turning tokens into text
        metrics = RequestMetrics(arrival=request.arrival)
        self.output = RequestOutput(request.id, prompt, request.prompt, [self.completion], False, metrics=metrics)

    def take(self, update: TokenUpdate, now: float) -> None:
        """Add what came."""
        completion, metrics = self.completion, self.output.metrics
        completion.token_ids += update.tokens
        begin = time.perf_counter()
        completion.text += self.text.take(update)
        self.text_s += time.perf_counter() - begin
        metrics.scheduled, metrics.first_token = update.scheduled, update.first_token
        self.output.num_cached_tokens = update.cached
        if self.text.stop_string is not None:
            completion.finish_reason, completion.stop_reason = FinishReason.STOP.value, self.text.stop_string
        elif update.finish is not None:
            completion.finish_reason, completion.stop_reason = update.finish, update.stop_token
        self.output.finished = completion.finished()
        metrics.finished = now if self.output.finished else 0.0


def _spread(name: str, value: Any, count: int, kind: type) -> list[Any]:
    """One for each prompt, from one for all or a list."""
    values = [value] * count if type(value) is kind else value
    if not isinstance(values, (list, tuple)) or not all(type(v) is kind for v in values):
        raise RequestError(f"{name} is {value!r:.80}: {kind.__name__}, one for all or a list of them, is accepted.", name)
    if len(values) != count:
        raise RequestError(
            f"{name} has {len(values)} entries for {count} prompts: one for all or one for each is accepted.", name
        )
    return list(values)
