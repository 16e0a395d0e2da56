"""How long a sequence is likely to become."""

from __future__ import annotations

from octavo.scheduler.sequence import Sequence

FIRST_GUESS = 128  # output tokens; the median of the Azure conversation trace, until this server has seen its own


class OutputExpectation:
    """Expected final lengths: prompt + max_tokens, or prompt + this server's mean output where max_tokens is unset."""

    def __init__(self) -> None:
        self._outputs = 0
        self._tokens = 0

    def observe(self, output_tokens: int) -> None:
        """Count a finished request's output."""
        self._outputs += 1
        self._tokens += output_tokens

    @property
    def mean(self) -> int:
        """Mean output tokens of the requests finished so far."""
        return round(self._tokens / self._outputs) if self._outputs else FIRST_GUESS

    def final_length(self, sequence: Sequence) -> int:
        """Tokens, prompt and output together; never less than the sequence has, never more than its limit."""
        if sequence.request.params.max_tokens is not None:
            return sequence.limit
        return min(sequence.limit, max(len(sequence.request.prompt) + self.mean, len(sequence.tokens) + 1))
