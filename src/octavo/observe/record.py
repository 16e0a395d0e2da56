"""StepRecord: what one step did and how long each part took. Recorder: the latest of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step. Times are seconds; ``start`` is the engine's clock.

    schedule_s: choosing the tokens and, after the step, committing what was sampled.
    prepare_s:  turning the plan into a KVView.
    execute_s:  the decoder. sample_s: choosing tokens from its logits.
    launches:   calls from Python into compiled computing code.
    kv_fraction: share of the KV cache that sequences hold after the step.
    """

    step: int
    start: float
    schedule_s: float
    prepare_s: float
    execute_s: float
    sample_s: float
    launches: int
    sequences: int
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    kv_fraction: float

    @property
    def total_s(self) -> float:
        """From the beginning of scheduling to the end of commit."""
        return self.schedule_s + self.prepare_s + self.execute_s + self.sample_s


class Recorder:
    """Keeps the last ``capacity`` steps. Components record; none of them reads."""

    def __init__(self, capacity: int = 4096):
        self._steps: deque[StepRecord] = deque(maxlen=capacity)

    def record(self, step: StepRecord) -> None:
        """Keep this step; the oldest is dropped when the buffer is full."""
        self._steps.append(step)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._steps)
