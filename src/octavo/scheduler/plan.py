"""StepPlan: which tokens of which sequences one step computes. The door between deciding and computing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Logits(IntEnum):
    """For which tokens of a row the output layer is computed."""

    NONE = 0  # a prefill chunk that is not the last
    LAST = 1  # one token is sampled from the row's last position
    ALL = 2  # every position, for whoever asks for the logits themselves


@dataclass(frozen=True, slots=True)
class Row:
    """A run of consecutive tokens of one sequence.

    slot:   small stable integer; names the sequence to the runner and to the KV cache while it runs.
    start:  position of the first token in its sequence; everything before it is already in the KV cache.
    length: number of tokens.
    tokens: their ids; None: the one token that the previous step sampled in this slot (``length`` is 1).
    logits: what is wanted of the output layer.
    """

    slot: int
    start: int
    length: int
    tokens: list[int] | None
    logits: Logits


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """How a slot samples from now on. The runner keeps this until the slot is opened again.

    drawn: how many tokens the sequence has drawn already: the position in its random stream. A preempted sequence
           continues where it was.
    """

    slot: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    drawn: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes. ``opened`` holds only the slots whose sampling changed since the last plan."""

    step: int
    rows: tuple[Row, ...]
    opened: tuple[SlotSampling, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(row.length for row in self.rows)

    @property
    def decode_tokens(self) -> int:
        """Tokens of rows that continue what the previous step sampled."""
        return sum(row.tokens is None for row in self.rows)
