"""SharedRunner: one runner, with its weights and threads, for all engines that come one after another."""

from __future__ import annotations

import gc
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.build import build_runner
from octavo.models.checkpoint import Checkpoint
from octavo.models.program import Program
from octavo.runner.base import Runner
from octavo.runner.choice import Choice

# The settings, beside what ``Choice`` says, that a runner is made from. Where keys and values lie it learns with every step.
OF_A_RUNNER = (
    "model", "attention", "threads", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "quantized_matmul",
)  # fmt: skip


class SharedRunner:
    """Gives each engine the runner that the one before had, where that would make the same: loading a model takes longer than
    many a measurement. Otherwise it lets go of that one and makes another, so that there is never more than one at a time.

    To be called as ``build_engine`` calls its ``make_runner``.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._runner: Runner | None = None

    def __call__(
        self, config: EngineConfig, choice: Choice, program: Program, checkpoint: Checkpoint, max_model_len: int
    ) -> Runner:
        settings = tuple(getattr(config, name) for name in OF_A_RUNNER)
        key = (choice.name, choice.dtype, choice.kv_dtype, max_model_len, *settings)
        if self._runner is None or key != self._key:
            self.close()
            self._runner, self._key = build_runner(config, choice, program, checkpoint, max_model_len), key
        return self._runner

    def close(self) -> None:
        """Let go of the runner."""
        self._runner = None
        gc.collect()
