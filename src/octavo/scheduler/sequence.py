"""Sequence: a request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.kv.swap import Swapped
from octavo.request import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and how far it has come.

    order:    arrival number; with the priority it decides who goes first, and a preempted request keeps it.
    limit:    the most tokens, prompt and output together, that it may ever hold.
    seed:     of its random stream.
    tokens:   prompt and sampled tokens; only ever appended to.
    slot:     its slot while it runs, else -1.
    computed: how many of ``tokens`` have keys and values in the cache.
    planned:  how many will have once the steps under way are done.
    rows:     rows of steps that are planned and not committed. pending: tokens that these will sample.
    ended:    whether it has left; what rows under way still sample for it is dropped.
    stops:    its stop tokens.
    swapped:  what it left in the swap space when it was preempted.
    lost:     how many had, before it was preempted.
    admitted: len(tokens) when it was last admitted: tokens beyond were sampled in its present slot.
    """

    request: Request
    order: int
    limit: int
    seed: int
    tokens: list[int] = field(default_factory=list)
    slot: int = -1
    computed: int = 0
    planned: int = 0
    rows: int = 0
    pending: int = 0
    ended: bool = False
    lost: int = 0
    admitted: int = 0
    cached: int = 0
    preemptions: int = 0
    aborted: bool = False
    scheduled: float = 0.0
    first_token: float = 0.0
    stops: frozenset[int] = frozenset()
    swapped: Swapped | None = None

    def __post_init__(self) -> None:
        self.stops = frozenset(self.request.params.stop_token_ids or ())
        self.tokens = list(self.request.prompt)

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts sequences by who goes first."""
        return (self.request.priority, self.order)

    @property
    def drawn(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def length(self) -> int:
        """Tokens that it has, those included that steps under way will sample."""
        return len(self.tokens) + self.pending

    @property
    def decoding(self) -> bool:
        """Whether all that is left to compute is the token sampled last, which the runner has in this slot, or will have."""
        return self.planned == self.length - 1 and self.planned >= self.admitted
