"""Fields: typed reading of the settings that a model file states about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelError

LARGEST = 2**31 - 1


class Fields:
    """The settings of one file, by key. A key that is absent or null takes the default; without a default it is required.

    Every method raises ModelError, naming the file, the key, the value and what is accepted.
    """

    def __init__(self, where: str, values: Mapping[str, Any]):
        self.where = where
        self.values = values

    def get(self, key: str) -> Any:
        """The value as it is; None where it is absent."""
        return self.values.get(key)

    def refuse(self, key: str, accepted: str) -> ModelError:
        """The error to raise for a value that is not accepted."""
        if self.get(key) is None:
            return ModelError(f"{self.where} does not state {key}: {accepted} is needed.")
        value = repr(self.get(key))
        shown = value if len(value) <= 200 else value[:200] + "..."
        return ModelError(f"{self.where}: {key} is {shown}: {accepted} is accepted.")

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = LARGEST) -> int:
        """An integer from ``low`` to ``high``."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"an integer from {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int = 1, high: int = LARGEST) -> int | None:
        """An integer, or None where it is absent."""
        return None if self.values.get(key) is None else self.integer(key, low=low, high=high)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.refuse(key, "a finite number above 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.refuse(key, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or None where it is absent."""
        return None if self.values.get(key) is None else self.text(key)

    def table(self, key: str) -> Fields:
        """The settings within this one; empty where it is absent."""
        value = self.values.get(key)
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise self.refuse(key, "an object")
        return Fields(f"{self.where}: {key}", value)
