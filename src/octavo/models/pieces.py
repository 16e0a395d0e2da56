"""Pieces: the bytes that each token contributes to a text.

Decoding is concatenation of bytes, so it can go on token by token at a fixed cost and never has to look back. This differs from
the tokenizers library for one kind of text only: where byte tokens (``<0xE2>``) do not form valid UTF-8, the library replaces
each byte of their run by U+FFFD, and octavo only those that are invalid, as it does for byte-level vocabularies.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

from octavo.errors import ModelError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
ACCEPTED = "ByteLevel, or Replace... ByteFallback Fuse [Strip]"


class Pieces:
    """Bytes by token id, worked out when first asked for.

    strip: how many spaces are dropped from the very beginning of a text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, replacements: list[tuple[str, str]] | None, strip: int = 0):
        self._backend = backend
        self._replacements = replacements  # None: byte-level
        self._known: dict[int, bytes] = {}
        self.strip = strip

    def of(self, token_id: int) -> bytes:
        """The token's bytes; empty outside the vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
            if token is None:  # not kept: there is no end of them
                return b""
            known = self._known[token_id] = self._spell(token)
        return known

    def longest(self) -> int:
        """Bytes of the longest token, added ones included."""
        added = (len(token.content.encode()) for token in self._backend.get_added_tokens_decoder().values())
        return max((*map(len, map(self._spell, self._backend.get_vocab())), *added), default=0)

    def _spell(self, token: str) -> bytes:
        if self._replacements is None:
            try:
                return bytes(map(BYTES.__getitem__, token))
            except KeyError:  # an added token, spelled as text
                return token.encode()
        if match := BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(match[1])
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()


def read_pieces(backend: tokenizers.Tokenizer, where: str) -> Pieces:
    """The pieces that the tokenizer's decoder stands for. Raises ModelError where it is of another kind."""
    steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder else []
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return Pieces(backend, None)
    replacements = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        replacements.append((steps[0]["pattern"]["String"], steps.pop(0)["content"]))
    match steps:
        case [{"type": "ByteFallback"}, {"type": "Fuse"}]:
            return Pieces(backend, replacements)
        case [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": strip, "stop": 0}]:
            return Pieces(backend, replacements, strip)
    kinds = " ".join(step["type"] for step in steps) or "nothing"
    raise ModelError(f"{where}: the tokenizer's decoder is {kinds}: {ACCEPTED} is accepted.")


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: printable ones for themselves, the others, in order,
    for U+0100 onwards (GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_alphabet()
