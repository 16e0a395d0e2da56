"""How much text a token can stand for: tells that a text is far too long without tokenising it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tokenizers

from octavo.models.pieces import BYTES, Pieces

NFC_SHRINKS = 3  # times, at most: three Hangul letters of three bytes each become one syllable of three
KEEPS_ALL = ("ByteLevel", "Digits", "Metaspace", "Prepend", "Punctuation")  # steps that drop no text and shorten none


def most_bytes_per_token(backend: tokenizers.Tokenizer, pieces: Pieces) -> int | None:
    """UTF-8 bytes of a text that become one token, at most. None where there is no such bound, because this tokenizer may drop
    text or put any length of it into one token, or where it has a part that is not known here."""
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None  # such a token takes all the spaces beside it
    shrinks = 1
    for step in (*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)):
        match step:
            case {"type": "NFC"}:
                shrinks = NFC_SHRINKS
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                pass
            case {"type": "Split", "behavior": behavior} if behavior != "Removed":
                pass
            case {"type": kind} if kind in KEEPS_ALL:
                pass
            case _:
                return None
    return pieces.longest() * shrinks if _knows_every_byte(backend) else None


def _knows_every_byte(backend: tokenizers.Tokenizer) -> bool:
    """Whether no part of a text is unknown; what is unknown is dropped, or fused."""
    model = backend.model
    if not isinstance(model, tokenizers.models.BPE):
        return False
    names = [f"<0x{byte:02X}>" for byte in range(256)] if model.byte_fallback else list(BYTES)
    return all(model.token_to_id(name) is not None for name in names)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or a pre-tokenizer, those of a sequence one by one."""
    waiting = [json.loads(part.__getstate__())] if part is not None else []
    while waiting:
        step = waiting.pop(0)
        inner = step.get("normalizers") or step.get("pretokenizers")
        if step["type"] == "Sequence":
            waiting = [*(inner or ()), *waiting]
        else:
            yield step
