"""Salted hashes of a prompt's prefixes: they tell which prompts begin alike, and nothing of what they say."""

from __future__ import annotations

import secrets
from hashlib import blake2b

from octavo.bench.traces.capture import BLOCK, HASH_DIGITS

LINK = 16  # bytes of a hash that go into the next one: far more than are written


class PrefixHasher:
    """Hashes under a salt that is drawn anew for each capture and never leaves this object.

    Without it nobody can check a guess at a prompt against the hashes; with another one the same prompt has other hashes, so two
    captures cannot be joined.
    """

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)

    def hashes(self, prompt: bytes) -> str:
        """HASH_DIGITS hexadecimal digits for each BLOCK of bytes, the last of which may be shorter. Each depends on all before:
        BLAKE2b, keyed with the salt, of the previous hash and the block."""
        digits = []
        link = b""
        for at in range(0, len(prompt), BLOCK):
            link = blake2b(link + prompt[at : at + BLOCK], digest_size=LINK, key=self._salt).digest()
            digits.append(link.hex()[:HASH_DIGITS])
        return "".join(digits)
