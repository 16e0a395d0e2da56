"""Runner: computes a StepPlan. Knows nothing of HTTP, text or policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.kv.view import KVView
from octavo.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed.

    tokens:   the sampled token of each row that asked for logits, in the plan's order: int32 ``[sampled rows]``.
    execute_s, sample_s: seconds in the decoder and in the sampler.
    launches: calls from Python into compiled computing code.
    logits:   float32 ``[logit positions, vocabulary]`` where the runner was told to keep them.

    The rest is as in ``StepRecord``: attention_launches, attention_s, kv_read_bytes, gather_s, gather_bytes, busy_s.
    """

    tokens: npt.NDArray[np.int32]
    execute_s: float
    sample_s: float
    launches: int
    logits: npt.NDArray[np.float32] | None = None
    attention_launches: int = 0
    attention_s: float = 0.0
    kv_read_bytes: int = 0
    gather_s: float = 0.0
    gather_bytes: int = 0
    busy_s: float | None = None


class Runner(ABC):
    """Executes plans, one after the other. Owns the weights, the activations and per-slot sampler state (``SlotSampling``,
    the token sampled last); the caller owns placement and passes it as a ``KVView``.

    threads: that compute.
    """

    threads: int = 1

    @abstractmethod
    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        """Carry out ``view.moves``, compute ``plan.rows`` and sample. A returned plan always fits, so this does not fail for
        lack of KV memory; whatever it raises is fatal for the engine."""

    def close(self) -> None:  # noqa: B027
        """Complete what the runner writes beside its results; most write nothing. It executes nothing after this."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """The settings as they really are: attention path, dtype, threads, instruction set. Printed at start."""
