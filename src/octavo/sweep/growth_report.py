"""What the measured step times say: exponents of context and batch for each setup, and where setups change places."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations

from octavo.bench.report import Json
from octavo.bench.table import format_number
from octavo.sweep.crossover import Crossover, crossover
from octavo.sweep.point import Setup
from octavo.sweep.power_law import PowerLaw, fit
from octavo.sweep.rows import spread

SHOWN_SKIPPED = 6


class GrowthReport:
    """rounds: for each setup, what ``measure_growth`` returned in each round."""

    def __init__(self, rounds: Mapping[Setup, Sequence[Json]]):
        self.times: dict[Setup, dict[tuple[int, int], list[float]]] = {}  # by context and batch, one of each round
        self.skipped: dict[str, list[str]] = {}  # reason -> setups
        for setup, made in rounds.items():
            times = self.times.setdefault(setup, {})
            for found in made:
                for point in found["points"]:
                    times.setdefault((point["context"], point["batch"]), []).append(point["step_s"])
            for skipped in made[0]["skipped"] if made else []:
                self.skipped.setdefault(skipped["reason"], []).append(setup.in_a_step.title)
        self.laws: dict[Setup, PowerLaw | None] = {
            setup: fit([(context, batch, s) for (context, batch), seconds in times.items() for s in seconds])
            for setup, times in self.times.items()
        }
        self.crossovers = self._crossovers()

    def json(self) -> Json:
        """For ``--json``."""
        setups = []
        for setup, times in self.times.items():
            law = self.laws[setup]
            setups.append(
                {
                    "layout": setup.layout,
                    "block_size": setup.block_size,
                    "attention": setup.attention,
                    "points": [
                        {"context": context, "batch": batch, "step_s": statistics.median(seconds), "spread": spread(seconds)}
                        for (context, batch), seconds in sorted(times.items())
                    ],
                    "exponents": None if law is None else law.json(),
                }
            )
        return {"setups": setups, "crossovers": [asdict(found) for found in self.crossovers]}

    def lines(self) -> list[str]:
        """For people."""
        measured = sorted({place for times in self.times.values() for place in times})
        if not measured:
            return []
        width = max(14, *(len(setup.in_a_step.title) for setup in self.times))
        heads = [f"{context} x {batch}" for context, batch in measured]
        columns = [max(9, len(head) + 2) for head in heads]
        lines = ["Decode step in ms, by context x batch, and its exponents: step = factor * context^a * batch^b, 99 % intervals"]
        head = "".join(f"{text:>{column}}" for text, column in zip(heads, columns, strict=True))
        lines.append(f"{'':{width}}{head}{'a (context)':>18}{'b (batch)':>18}{'worst':>8}")
        for setup, times in self.times.items():
            cells = []
            for place, column in zip(measured, columns, strict=True):
                value = statistics.median(times[place]) if place in times else None
                cells.append(f"{format_number(value, 1e3):>{column}}")
            law = self.laws[setup]
            a, b = ("-" if law is None or e is None else str(e) for e in ((law.context, law.batch) if law else (None, None)))
            worst = "-" if law is None else f"{law.worst:.0%}"
            lines.append(f"{setup.in_a_step.title:{width}}{''.join(cells)}{a:>18}{b:>18}{worst:>8}")
        for reason, setups in list(self.skipped.items())[:SHOWN_SKIPPED]:
            lines.append(f"Not measured with {', '.join(dict.fromkeys(setups))}: {reason}")
        return [*lines, *self._crossover_lines(measured)]

    def _crossovers(self) -> list[Crossover]:
        found = []
        for first, second in combinations(self.times, 2):
            if first.layout == second.layout and first.attention == second.attention:
                continue
            a, b = self.times[first], self.times[second]
            for batch in sorted({batch for _, batch in a.keys() & b.keys()}):
                sides = ({context: v for (context, n), v in side.items() if n == batch} for side in (a, b))
                place = crossover(first.in_a_step.title, second.in_a_step.title, batch, *sides)
                if place is not None:
                    found.append(place)
        return found

    def _crossover_lines(self, measured: Sequence[tuple[int, int]]) -> list[str]:
        if len(self.times) < 2:
            return []
        if not self.crossovers:
            contexts, batches = zip(*measured, strict=True)
            return [
                f"Crossover between layouts: none within contexts of {min(contexts)} to {max(contexts)} and batches of "
                f"{min(batches)} to {max(batches)}, beyond noise."
            ]
        return [
            f"Crossover at batch {c.batch}: {c.below} is faster below about {c.context:.0f} tokens, {c.above} above."
            for c in self.crossovers
        ]
