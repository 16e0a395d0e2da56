"""Bytes as people write and read them."""

from __future__ import annotations

import re

from octavo.errors import ConfigError

MOST_BYTES = 2**60
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(name: str, value: int | str) -> int:
    """Bytes from a number or from text such as "512MiB", "4GiB", "4g" (powers of 1024). Raises ConfigError."""
    count = value
    if isinstance(count, str):
        found = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]?)(i?b)?\s*", count, re.IGNORECASE)
        if not found:
            raise ConfigError(f'{name} is "{value}": a number of bytes is accepted, or text such as "512MiB" or "4GiB".')
        whole, _, part = found[1].partition(".")  # exact: a float would round, and overflow on a long number
        count = int(whole + part) * _UNITS[found[2].lower()] // 10 ** len(part)
    if not 0 < count <= MOST_BYTES:
        raise ConfigError(f"{name} is {value!s:.40}: a number of bytes from 1 to {MOST_BYTES} is accepted.")
    return count


def format_bytes(count: int) -> str:
    """A number of bytes for people: "4 GiB", "1.5 MiB", "16 KiB", "512 bytes"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
