"""Detokenizer: the text of one request, token by token."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.models.tokenizer import Tokenizer

TAIL = 16  # tokens: enough for a character's last bytes, and to see whether anything was said before


class Detokenizer:
    """Turns tokens into text as they come. What ``push`` returned and, at the end, ``flush``, is together the text of all tokens.

    Never returns part of a character; a token costs the same however long the text already is.

    prompt_tail: the prompt's last ids (the whole prompt does, too), where the text goes on from a prompt: the space of a first
    word then stays, and a character that the prompt began is completed.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()):
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.pieces.strip  # spaces still to be dropped
        self.push(prompt_tail[-TAIL:])

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        data = b"".join([self._pieces.of(token) for token in token_ids if token not in self._skipped])
        if self._strip and data:
            data = self._drop_spaces(data)
        return self._utf8.decode(data)

    def _drop_spaces(self, data: bytes) -> bytes:
        while self._strip and data.startswith(b" "):
            data = data[1:]
            self._strip -= 1
        if data:
            self._strip = 0
        return data

    def flush(self) -> str:
        """What is left at the end: U+FFFD where the last character is incomplete. The detokenizer can go on afterwards."""
        return self._utf8.decode(b"", final=True)
