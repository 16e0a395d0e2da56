"""AnswerReader: how long an answer was, from the bytes that pass by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.bench.client.chunk import Said, read_chunk
from octavo.bench.client.sse import EventReader
from octavo.bench.traces.source import BYTES_PER_TOKEN
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.models.tokenizer import Tokenizer

LARGEST = 64 * 2**20  # bytes of an answer in one piece, or of a stream's text, that are kept
DONE = b"[DONE]"


class AnswerReader:
    """Feed it an answer's body. Text is kept only where a tokenizer may have to count it, and only until ``output_tokens``.

    content_type: of the answer; tells a stream of events from an answer in one piece.
    failed:       whether the answer says so.
    """

    def __init__(self, content_type: str, keep_text: bool):
        self._events = EventReader() if content_type.lower().startswith("text/event-stream") else None
        self._keep_text = keep_text
        self._whole = bytearray()
        self._texts: list[str] = []
        self._bytes = 0
        self._pieces = 0
        self._counted = 0
        self.failed = False
        self._usage: tuple[int | None, int | None] = (None, None)

    def feed(self, piece: bytes) -> None:
        """Never raises: what cannot be understood is passed over."""
        if self._events is None:
            if len(self._whole) <= LARGEST:
                self._whole += piece
            return
        for data in self._events.feed(piece):
            self._take(data)

    def close(self) -> None:
        """The answer is over."""
        if self._events is None:
            self._take(bytes(self._whole))
            self._whole.clear()
        else:
            for data in self._events.close():
                self._take(data)

    def _take(self, data: bytes) -> None:
        if data.strip() == DONE:
            return
        try:
            said = read_chunk(data)
        except ValueError:
            return
        self.failed = self.failed or said.error is not None
        if said.usage is not None:
            self._usage = said.usage[0], said.usage[1]
        self._count(said)

    def _count(self, said: Said) -> None:
        self._counted += said.tokens or 0
        if not said.text:
            return
        self._pieces += 1
        self._bytes += len(said.text.encode("utf-8", "surrogatepass"))
        if self._keep_text and self._bytes <= LARGEST:
            self._texts.append(said.text)

    @property
    def prompt_tokens(self) -> int | None:
        """What the server says; None where it does not."""
        return self._usage[0]

    def output_tokens(self, tokenizer: Tokenizer | None) -> tuple[int, bool]:
        """The output's length, and whether it is an estimate: neither the server's count nor a tokenizer's."""
        if self._usage[1] is not None:
            return self._usage[1], False
        if self._counted:
            return self._counted, False
        if tokenizer is not None and self._texts:
            try:
                return len(tokenizer.encode("".join(self._texts), add_special_tokens=False)), False
            except RequestError:
                pass
        if self._events is not None:
            return self._pieces, True  # most servers send a token at a time
        return round(self._bytes / BYTES_PER_TOKEN), True
