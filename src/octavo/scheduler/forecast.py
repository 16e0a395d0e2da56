"""How much KV memory a batch will need before its sequences end."""

from __future__ import annotations

from collections.abc import Iterable


def peak_tokens(sequences: Iterable[tuple[int, int]]) -> int:
    """The most tokens that these sequences, (tokens held now, tokens still to come), will hold at one time.

    Each grows by a token a step and lets go of its memory when it ends. So the peak is where one is about to end: those that
    outlast it have grown by as much as it did (Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", 2025).
    O(n log n).
    """
    peak = held = 0
    last_first = sorted(sequences, key=lambda sequence: -sequence[1])
    for count, (now, to_come) in enumerate(last_first, 1):
        held += now
        peak = max(peak, held + count * to_come)
    return peak
