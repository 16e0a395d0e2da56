"""TextStream: a request's text as it grows: detokenising and stop strings."""

from __future__ import annotations

from octavo.models.detokenizer import Detokenizer
from octavo.models.tokenizer import Tokenizer
from octavo.request import FinishReason, SamplingParams, TokenUpdate


class TextStream:
    """Turns token ids into text that may be shown at once.

    Nothing is emitted that could still change: half a character is held back, and so is a tail that may turn out to be the
    beginning of a stop string. ``stop_string`` is the one that matched; the text ends just before it.
    The prompt's token ids are needed because the first new token joins on as it would in one text.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt: list[int]):
        self.stop_string: str | None = None
        self._stops = params.stop_strings
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, prompt)
        self._held = ""

    def take(self, update: TokenUpdate) -> str:
        """The text that this update makes certain: all of it when the request ends. A token that ended it is no text."""
        if update.finish is None:
            return self.push(update.tokens)
        return self.push(update.tokens[:-1] if update.finish == FinishReason.STOP else update.tokens) + self.flush()

    def push(self, token_ids: list[int]) -> str:
        """The text that these tokens make certain; "" once a stop string has matched."""
        if self.stop_string is not None:
            return ""
        return self._emit(self._detokenizer.push(token_ids), hold=True)

    def flush(self) -> str:
        """The rest, when no more tokens will come."""
        if self.stop_string is not None:
            return ""
        return self._emit(self._detokenizer.flush(), hold=False)

    def _emit(self, new: str, hold: bool) -> str:
        text = self._held + new
        if not self._stops:
            return text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop_string = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        keep = self._overlap(text) if hold else 0
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _overlap(self, text: str) -> int:
        """The length of the longest end of ``text`` that a stop string begins with."""
        longest = max(map(len, self._stops)) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
