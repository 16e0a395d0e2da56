"""Goals: the latencies that a request must keep to count as good (``--goodput``)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.record import RequestRecord
from octavo.errors import ConfigError

NAMES = ("ttft", "tpot", "e2e")
LIKELY_MS = 60.0  # seconds; nobody's goal for a token


@dataclass(frozen=True, slots=True)
class Goals:
    """Upper bounds in seconds, by name; a name that is left out is not a goal."""

    bounds: dict[str, float]

    def met(self, record: RequestRecord) -> bool:
        """Whether a completed request keeps all of them. A request without a TPOT (one token) keeps any bound of it."""
        return all((value := getattr(record, name)) is None or value <= bound for name, bound in self.bounds.items())

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} at most {bound:g} s" for name, bound in self.bounds.items())


def parse_goals(texts: Sequence[str]) -> Goals | None:
    """From "ttft:0.5", "tpot:50ms", ...; None where there are none. Raises ConfigError."""
    bounds: dict[str, float] = {}
    for text in texts:
        found = re.fullmatch(r"(\w+)[:=]([0-9.eE+-]+)(ms|s|)", text)
        name = found[1].lower() if found else ""
        if found is None or name not in NAMES:
            raise ConfigError(
                f"goodput is {text!r}: a name ({', '.join(NAMES)}), a colon and a time are accepted, such as ttft:0.5, tpot:50ms."
            )
        try:
            bound = float(found[2])
        except ValueError:
            raise ConfigError(f"goodput is {text!r}: {found[2]} is no number.") from None
        if found[3] == "" and name != "e2e" and bound >= LIKELY_MS:
            raise ConfigError(f"goodput is {text!r}: that is {bound:g} seconds; write {bound:g}ms or {bound:g}s.")
        bound = bound / 1000 if found[3] == "ms" else bound
        if not (bound > 0 and math.isfinite(bound)):
            raise ConfigError(f"goodput is {text!r}: a time above 0 is accepted.")
        if name in bounds:
            raise ConfigError(f"goodput names {name} twice.")
        bounds[name] = bound
    return Goals(bounds) if bounds else None
