"""Generation: one request under way, its tokens turned into text."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from octavo.engine.text import TextStream
from octavo.errors import OctavoError, RequestError
from octavo.request import FinishReason, Request, TokenUpdate
from octavo.server.metrics import ERROR
from octavo.server.protocol import PromptTokensDetails, Usage
from octavo.server.service import Service


class Generation:
    """Iterate ``texts`` to its end; then ``finish_reason``, ``stop_reason`` and ``usage`` are final.

    Leaving early aborts the request. When ``texts`` ends, the request's blocks are free and the gauges say so.
    """

    def __init__(self, service: Service, request: Request):
        self.finish_reason = ""
        self.stop_reason: int | str | None = None
        self._service = service
        self._request = request
        self._text = TextStream(service.tokenizer, request.params, request.prompt)
        self._one_by_one = bool(request.params.stop_strings)
        self._tokens = 0
        self._text_s = 0.0  # spent on turning tokens into text
        self._cached: int | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self._request.id

    @property
    def usage(self) -> Usage:
        """The token counts so far. Tokens after a stop string are not counted; a token that ended the output is."""
        prompt = len(self._request.prompt)
        return Usage(prompt, self._tokens, prompt + self._tokens, PromptTokensDetails(self._cached or 0))

    async def texts(self) -> AsyncGenerator[str, None]:
        """What becomes certain of the text, piece by piece; pieces may be empty."""
        engine, metrics, request = self._service.engine, self._service.metrics, self._request
        metrics.started(request)
        reason = FinishReason.ABORT.value
        try:
            async with aclosing(engine.generate(request)) as updates:
                async for update in updates:
                    if self._cached is None:
                        self._cached = update.cached
                    stopped = self._text.stop_string is not None
                    begin = time.perf_counter()
                    piece = self._take(update)
                    self._text_s += time.perf_counter() - begin
                    if update.finish is not None:
                        self._finish(update)
                        reason = self.finish_reason
                        metrics.finished(request.id, reason, self._tokens)
                    elif self._text.stop_string is not None and not stopped:
                        await engine.abort(request.id)  # and wait for its last update
                    yield piece
        except RequestError:
            metrics.refused(request.id)
            raise
        except OctavoError:
            reason = ERROR
            raise
        finally:
            metrics.finished(request.id, reason, self._tokens)
            if self._text_s:
                engine.text_time(request.id, self._text_s)

    async def text(self) -> str:
        """The whole text."""
        async with aclosing(self.texts()) as pieces:
            return "".join([piece async for piece in pieces])

    def _take(self, update: TokenUpdate) -> str:
        """The text that an update makes certain. Merged updates are taken token by token where a stop string may match."""
        if self._text.stop_string is not None:
            return ""  # computed before the abort reached the engine
        if not self._one_by_one:
            self._tokens += len(update.tokens)
            return self._text.take(update)
        pieces = []
        for i, token in enumerate(update.tokens):
            last = i == len(update.tokens) - 1
            self._tokens += 1
            one = TokenUpdate(id=update.id, tokens=[token], finish=update.finish if last else None)
            pieces.append(self._text.take(one))
            if self._text.stop_string is not None:
                return "".join(pieces)
        if not update.tokens:
            pieces.append(self._text.take(update))
        return "".join(pieces)

    def _finish(self, update: TokenUpdate) -> None:
        assert update.finish is not None
        if self._text.stop_string is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP.value, self._text.stop_string
            return
        self.finish_reason, self.stop_reason = update.finish, update.stop_token
