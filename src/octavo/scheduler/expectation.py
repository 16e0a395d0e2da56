"""How long a sequence is likely to become."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from octavo.scheduler.sequence import Sequence

FIRST_GUESS = 128  # output tokens; the median of the Azure conversation trace, until this server has seen its own
REMEMBERED = 256  # finished requests that the quantile is of
QUANTILE = 0.75


class OutputExpectation:
    """Expected final lengths, from what requests ask for and from what this server's requests came to.

    The most that a request may need is prompt + max_tokens. Many end before that: how much of what they asked for the latest
    REMEMBERED requests came to is kept, and its QUANTILE is what the next one is likely to need of it.
    """

    def __init__(self) -> None:
        self._outputs = 0
        self._tokens = 0
        self._shares: deque[float] = deque()  # of max_tokens, in order of their end, and sorted
        self._sorted: list[float] = []

    def observe(self, sequence: Sequence) -> None:
        """Count a finished request's output."""
        self._outputs += 1
        self._tokens += sequence.drawn
        asked = sequence.limit - len(sequence.request.prompt)
        if sequence.request.params.max_tokens is not None and asked > 0:
            share = sequence.drawn / asked
            self._shares.append(share)
            insort(self._sorted, share)
            if len(self._shares) > REMEMBERED:
                del self._sorted[bisect_left(self._sorted, self._shares.popleft())]

    @property
    def mean(self) -> int:
        """Mean output tokens of the requests finished so far."""
        return round(self._tokens / self._outputs) if self._outputs else FIRST_GUESS

    def final_length(self, sequence: Sequence) -> int:
        """Tokens, prompt and output together, that it may come to: never less than the sequence has, never more than its limit.
        Where max_tokens is unset: with the mean output."""
        if sequence.request.params.max_tokens is not None:
            return sequence.limit
        return min(sequence.limit, max(len(sequence.request.prompt) + self.mean, len(sequence.tokens) + 1))

    def likely_length(self, sequence: Sequence) -> int:
        """Tokens that it will likely have in the end, between those that it has and its limit."""
        if sequence.request.params.max_tokens is None or not self._sorted:
            return self.final_length(sequence)
        share = self._sorted[int(QUANTILE * (len(self._sorted) - 1))]
        prompt = len(sequence.request.prompt)
        return min(sequence.limit, max(len(sequence.tokens) + 1, prompt + round(share * (sequence.limit - prompt))))
