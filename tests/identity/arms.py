"""Arms: engine configurations that must all give the same tokens, and an engine that runs one of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from octavo.engine.core import EngineCore
from octavo.kv.arena import KVSpec
from octavo.kv.factory import build_cache, can_share
from octavo.models.checkpoint import Checkpoint
from octavo.models.decoder import build_program
from octavo.observe.clock import RealClock
from octavo.request import Request, SamplingParams
from octavo.runner.base import Runner
from octavo.runner.native_runner import NativeRunner
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.scheduler import Scheduler

CONTIGUOUS = [("contiguous", 16), ("contiguous-request", 16), ("contiguous-grow", 16)]
PLACEMENTS = [*CONTIGUOUS, ("virtual", 16), *itertools.product(["paged", "hybrid"], [1, 8, 16, 64, 256])]
ATTENTION = ["fused", "gather", "per-request"]


@dataclass(frozen=True)
class Arm:
    """One configuration. ``chunk``: most tokens of a step. ``scarce``: so little KV memory that sequences are preempted."""

    placement: tuple[str, int]
    attention: str
    chunk: int
    scarce: bool
    prefix_caching: bool
    batch: int

    def __str__(self) -> str:
        layout, block = self.placement
        return (
            f"{layout}{block if layout in ('paged', 'hybrid') else ''}-{self.attention}-chunk{self.chunk}-"
            f"{'scarce' if self.scarce else 'ample'}-{'prefix' if self.prefix_caching else 'plain'}-batch{self.batch}"
        )


class Arms:
    """Runs arms on one checkpoint; the runners, which hold the weights, are built once for each attention path.

    settings: more arguments of a native runner.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str,
        *,
        slots: int,
        max_model_len: int,
        threads: int = 2,
        runner: type[TorchRunner] | type[NativeRunner] = TorchRunner,
        **settings: Any,
    ):
        self.checkpoint, self.dtype, self.slots, self.max_model_len, self.threads = (
            checkpoint,
            dtype,
            slots,
            max_model_len,
            threads,
        )
        self._class, self._settings = runner, settings
        self._runners: dict[str, Runner] = {}

    def runner(self, attention: str) -> Runner:
        """The runner of an attention path."""
        if attention not in self._runners:
            self._runners[attention] = self._class(
                build_program(self.checkpoint.config), self.checkpoint, dtype=self.dtype, attention=attention,
                threads=self.threads, slots=self.slots, max_model_len=self.max_model_len, max_batched_tokens=2048,
                **self._settings,
            )  # fmt: skip
        return self._runners[attention]

    def spec(self) -> KVSpec:
        """The shape of the KV cache."""
        model = self.checkpoint.config
        return KVSpec(model.layers, model.kv_heads, model.head_dim, self._settings.get("kv_dtype", self.dtype))

    def shares(self, placement: tuple[str, int]) -> bool:
        """Whether this layout can share prefixes of this model."""
        return can_share(placement[0].partition("-")[0], self.spec(), self.max_model_len)

    def engine(self, arm: Arm, capacity: int, **cache: Any) -> EngineCore:
        """An engine over ``capacity`` tokens of KV cache."""
        model = self.checkpoint.config
        layout, _, reserve = arm.placement[0].partition("-")
        reserving = {"contiguous_reserve": reserve, "compaction_slice": 24 * self.spec().token_bytes} if reserve else {}
        kv = build_cache(
            layout, self.spec(),
            capacity=capacity,
            slots=arm.batch, max_model_len=self.max_model_len, block_size=arm.placement[1],
            prefix_caching=arm.prefix_caching and self.shares(arm.placement), **reserving, **cache,
        )  # fmt: skip
        kv.arena.array()[:] = 0xFF  # NaN in every float type: what was never written must not be read
        clock = RealClock()
        scheduler = Scheduler(
            kv, clock, max_num_seqs=arm.batch, max_num_batched_tokens=max(arm.chunk, arm.batch), max_model_len=self.max_model_len,
            max_preemptions=4, vocab=model.vocab,
        )  # fmt: skip
        return EngineCore(scheduler, kv, self.runner(arm.attention), clock, {})

    def run(
        self, arm: Arm, prompts: list[list[int]], tokens: int, capacity: int, **cache: Any
    ) -> tuple[list[list[int]], EngineCore]:
        """Greedy continuations of all prompts, and the engine that made them."""
        core = self.engine(arm, capacity, **cache)
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            core.add(Request(id=str(i), prompt=prompt, params=params, arrival=0.0))
        got: list[list[int]] = [[] for _ in prompts]
        while core.has_work:
            for update in core.step().updates:
                got[int(update.id)] += update.tokens
        core.check()
        assert core.stats().kv_reserved == 0
        return got, core


def pairwise(axes: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Few combinations in which every pair of values of every two axes occurs: greedily, the one that covers most new pairs."""
    pairs = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(axes)), 2)
        for a in range(len(axes[i]))
        for b in range(len(axes[j]))
    }
    everything = list(itertools.product(*(range(len(axis)) for axis in axes)))

    def covered(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(axes)), 2)}

    chosen = []
    while pairs:
        best = max(everything, key=lambda row: len(covered(row) & pairs))
        pairs -= covered(best)
        chosen.append(tuple(axes[i][at] for i, at in enumerate(best)))
    return chosen
