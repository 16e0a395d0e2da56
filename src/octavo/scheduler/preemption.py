"""Preemption: what becomes of the keys and values of a sequence that is put out."""

from __future__ import annotations

PREEMPTIONS = ("recompute", "swap", "auto")
WEIGHT = 0.2  # of the latest step in the average rate of prefill
ENOUGH = 0.5  # share of a step's tokens that must be prefill for its time to tell the rate


class Preemption:
    """mode "recompute": they are dropped, and computed again when the sequence comes back. "swap": they are copied to the swap
    space and back, where there is room. "auto": whichever is cheaper: copying twice at ``copied_s``, tokens a second, or
    computing again at the rate that prefill has had lately.
    """

    def __init__(self, mode: str = "recompute", copied_s: float = 0.0):
        self.mode = mode
        self.copied_s = copied_s
        self.prefilled_s = 0.0  # tokens a second; 0: nothing was seen yet

    def observe(self, prefill_tokens: int, tokens: int, seconds: float) -> None:
        """A step computed ``tokens`` tokens, of which ``prefill_tokens`` of prompts, in so many seconds."""
        if seconds > 0 and prefill_tokens > ENOUGH * tokens:
            rate = tokens / seconds
            self.prefilled_s = rate if not self.prefilled_s else self.prefilled_s + WEIGHT * (rate - self.prefilled_s)

    @property
    def swaps(self) -> bool:
        """Whether copying costs less than computing again. Both are in proportion to the tokens, so their number does not
        matter."""
        if self.mode != "auto":
            return self.mode == "swap"
        return not self.prefilled_s or 2 / self.copied_s < 1 / self.prefilled_s
