"""A runner without a model, for testing everything around one.

Its "keys and values" are token ids, written through the KVView like any runner's; the next token is a hash of the whole
context as read back from there. A block that was lost, overwritten, shared wrongly or never written changes the tokens.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from octavo.kv.view import KVView
from octavo.runner.base import Runner, StepResult
from octavo.scheduler.plan import Logits, StepPlan

NEVER_WRITTEN = -1


def next_token(context: list[int], vocab: int) -> int:
    """What the fake model says after ``context``."""
    return zlib.crc32(np.asarray(context, np.int64).tobytes()) % vocab


def continuation(prompt: list[int], tokens: int, vocab: int) -> list[int]:
    """What the fake model says after ``prompt``, ``tokens`` times: the oracle."""
    context = list(prompt)
    for _ in range(tokens):
        context.append(next_token(context, vocab))
    return context[len(prompt) :]


class FakeRunner(Runner):
    """Computes plans as described above; keeps the plans it was given in ``plans``.

    cells: int64, one for each token index, where they are not the runner's own: all 0 at first. A cell holds ~token, so that 0,
    which memory begins as, is no token.
    """

    def __init__(self, capacity: int, slots: int, vocab: int, cells: npt.NDArray[np.int64] | None = None):
        self.cells = np.zeros(capacity, np.int64) if cells is None else cells
        self.last = np.full(slots, NEVER_WRITTEN, np.int64)
        self.vocab = vocab
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        self.plans.append(plan)
        for move in view.moves:
            self.cells[move.target : move.target + move.tokens] = self.cells[move.source : move.source + move.tokens].copy()
        sampled = []
        for row in plan.rows:
            tokens = [int(self.last[row.slot])] if row.tokens is None else row.tokens
            assert len(tokens) == row.length
            positions = np.arange(row.start, row.start + row.length)
            self.cells[view.token_indices(np.asarray(row.slot), positions)] = ~np.asarray(tokens)
            if row.logits is Logits.LAST:
                everything = np.arange(row.start + row.length)
                context = (~self.cells[view.token_indices(np.asarray(row.slot), everything)]).tolist()
                assert NEVER_WRITTEN not in context, "a row reads a place that was never written"
                token = next_token(context, self.vocab)
                self.last[row.slot] = token
                sampled.append(token)
        return StepResult(np.asarray(sampled, np.int32), 0.0, 0.0, 1)

    def describe(self) -> dict[str, str]:
        return {"runner": "fake"}
