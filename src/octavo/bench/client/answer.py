"""Answer: turns the bytes of one HTTP answer into the record of its request."""

from __future__ import annotations

from octavo.bench.client.chunk import Said, error_message, read_chunk
from octavo.bench.client.sse import EventReader
from octavo.bench.live import Live
from octavo.bench.record import DISCONNECT, MALFORMED, NO_OUTPUT, SERVER_ERROR, RequestRecord

DONE = b"[DONE]"
MOST_ERROR_BYTES = 64 * 1024  # of an answer that is not 200, to find its message in


class Answer:
    """Call ``head`` once, ``body`` for what arrives, then ``complete``, or ``fail`` instead.

    Raises nothing: what is wrong with an answer becomes the record's ``error``, and ``over`` is set then.
    """

    def __init__(self, record: RequestRecord, live: Live, keep_text: bool = False):
        """``live`` counts the pieces. ``keep_text``: keep the output, so that its tokens can be counted later."""
        self.record = record
        self._live = live
        self.over = False
        self._keep_text = keep_text
        self._status = 0
        self._events: EventReader | None = None
        self._whole = bytearray()  # an answer that is no stream
        self._said = 0  # tokens up to now, as the server says while it streams
        self._counted = 0  # of these, in pieces
        self._says = False  # whether the event under way said so
        self._done = False

    @property
    def started(self) -> bool:
        """Whether the head has come."""
        return self._status != 0

    def head(self, status: int, content_type: str) -> None:
        """The status line and headers are there."""
        self._status = status
        if status == 200 and content_type.partition(";")[0].strip().lower() != "application/json":
            self._events = EventReader()

    def body(self, now: float, data: bytes) -> None:
        """A piece of the body, at this moment."""
        if self.over:
            return
        if self._events is None:
            if self._status == 200 or len(self._whole) < MOST_ERROR_BYTES:
                self._whole += data
            return
        for event in self._events.feed(data):
            self._event(now, event)

    def complete(self, now: float) -> None:
        """The answer has come to its end as HTTP has it."""
        if self.over:
            return
        if self._status != 200:
            self.fail(now, f"http_{self._status}", f"HTTP {self._status}: {error_message(bytes(self._whole))}")
            return
        if self._events is None:
            self.record.streamed = False
            self._event(now, bytes(self._whole))
        else:
            for event in self._events.close():
                self._event(now, event)
        if self.over:
            return
        record = self.record
        if not self._done and record.finish is None and self._events is not None:
            self.fail(now, DISCONNECT, "The stream ended without a finish_reason and without [DONE].")
        elif not record.moments:
            self.fail(now, NO_OUTPUT, f"The answer holds no output (finish_reason {record.finish}).")
        else:
            self.over = True
            record.ended = now

    def fail(self, now: float, kind: str, message: str) -> None:
        """It will not come, or not whole. The first failure counts."""
        if not self.over:
            self.over = True
            self.record.ended, self.record.error, self.record.message = now, kind, message

    def _event(self, now: float, data: bytes) -> None:
        if self.over:
            return
        if data.strip() == DONE:
            self._done = True
            return
        try:
            said = read_chunk(data)
        except ValueError as error:
            self.fail(now, MALFORMED, f"An event cannot be read: {error}: {data[:100]!r}.")
            return
        if said.error is not None:
            self.fail(now, SERVER_ERROR, said.error)
            return
        self._count(said)
        if said.text:
            self._piece(now, said.text)
        if said.finish is not None:
            self.record.finish = said.finish

    def _count(self, said: Said) -> None:
        """What the server says about numbers of tokens."""
        record = self.record
        self._says = False
        if said.tokens is not None:
            self._said += said.tokens
            self._says = True
        if said.usage is None:
            return
        prompt, output, cached = said.usage
        if prompt is not None:
            record.prompt_tokens = prompt
        if cached is not None:
            record.cached_tokens = cached
        if output is not None:
            record.output_tokens, record.token_source = output, "server"
            self._said, self._says = output, True

    def _piece(self, now: float, text: str) -> None:
        record = self.record
        record.moments.append(now)
        self._live.pieces += 1
        if self._says:
            record.tokens.append(max(0, self._said - self._counted))
        else:
            record.tokens.append(1)
            record.stated = False
        self._counted += record.tokens[-1]
        if self._keep_text:
            record.text += text
