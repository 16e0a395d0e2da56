"""TrafficRecorder: what the proxy saw of a request, made into rows beside the traffic and not in its way."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.bench.capture.answer import AnswerReader
from octavo.bench.capture.prompt import PromptReader
from octavo.bench.capture.writer import CaptureWriter
from octavo.bench.traces.source import DamagedError

LARGEST_BODY = 64 * 2**20  # bytes of a request that is kept until it is recorded
ENDPOINTS = ("/chat/completions", "/completions")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Passage:
    """A request on its way through. arrival_s: seconds after the capture's start. answer: None until the server answers 200."""

    arrival_s: float
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    status: int = 0  # of the answer; 0: there was none
    answer: AnswerReader | None = None
    aborted: bool = False

    def take_body(self, piece: bytes) -> None:
        """A piece of the request's body went by."""
        self.size += len(piece)
        if self.size <= LARGEST_BODY:
            self.body += piece

    def answered(self, status: int, content_type: str, keep_text: bool) -> None:
        """The answer has begun."""
        self.status = status
        if status == 200:
            self.answer = AnswerReader(content_type, keep_text)


class TrafficRecorder:
    """Turns passages into rows, one after the other, in a thread of its own: hashing and tokenising delay nobody's answer."""

    def __init__(self, writer: CaptureWriter, reader: PromptReader):
        self._writer = writer
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="capture")
        self._failed = False

    @property
    def keeps_text(self) -> bool:
        """Whether outputs must be kept until they are counted."""
        return self._reader.tokenizer is not None

    def add(self, passage: Passage) -> None:
        """It is over."""
        self._thread.submit(self._add, passage)

    def close(self) -> None:
        """Write what is left."""
        self._thread.shutdown(wait=True)
        self._writer.close()

    def _add(self, passage: Passage) -> None:
        try:
            self._record(passage)
        except DamagedError:
            self._writer.left_out["no request that a trace can hold"] += 1
        except OSError as error:  # the disk is full, say: the traffic goes on
            self._writer.left_out["the file could not be written"] += 1
            if not self._failed:
                self._failed = True
                logger.error("The capture cannot be written any more: %s. Requests are still passed on.", error.strerror)
        except Exception:
            logger.exception("A request could not be recorded; it was passed on.")
            self._writer.left_out["an internal error"] += 1

    def _record(self, passage: Passage) -> None:
        if passage.answer is None:
            reason = f"answered with status {passage.status}" if passage.status else "not answered"
            self._writer.left_out[reason] += 1
            return
        if passage.size > LARGEST_BODY:
            self._writer.left_out[f"larger than {LARGEST_BODY} bytes"] += 1
            return
        passage.answer.close()
        try:
            body: Any = msgspec.json.decode(bytes(passage.body))
        except (msgspec.DecodeError, RecursionError):
            raise DamagedError("no JSON") from None
        if not isinstance(body, dict):
            raise DamagedError("no JSON object")
        output = passage.answer.output_tokens(self._reader.tokenizer)
        prompts = self._reader.read(body)
        self._writer.add(passage.arrival_s, prompts, passage.answer.prompt_tokens, output, passage.aborted)
