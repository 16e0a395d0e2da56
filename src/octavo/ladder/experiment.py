"""The experiment: what is measured on which batch, and the measuring of one configuration."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from octavo import machine
from octavo.config import EngineConfig
from octavo.engine.build import build_runner
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.contiguous import Contiguous
from octavo.kv.layout import Layout
from octavo.kv.paged import Paged
from octavo.ladder.causes import CAUSES, INDIRECTION, SLOW, Arm, Cause, arm
from octavo.ladder.filled import Contents, FilledCache
from octavo.ladder.rebuilt import RebuiltPaged, scattered
from octavo.models.checkpoint import Checkpoint
from octavo.models.decoder import build_program
from octavo.observe.clock import RealClock
from octavo.observe.record import StepRecord, decode_step
from octavo.observe.recorder import Recorder
from octavo.request import Request, SamplingParams
from octavo.runner.base import Runner
from octavo.runner.choice import choose_runner
from octavo.scheduler.scheduler import Scheduler
from octavo.units import format_bytes

WARMUP = 4  # steps before those that count
SHORTEST = 4  # the shortest sequence of a batch has this part of the longest one's tokens
SPARE = 4  # tokens that a sequence may have beyond those that count: none ends on the way


@dataclass(frozen=True, slots=True)
class Load:
    """batch: sequences that decode. context: tokens of the longest at the start; the others have from a quarter of it on, evenly.
    steps: that count. every: steps from one compaction to the next; ``steps`` is a multiple of it, so that the mean is right."""

    batch: int
    context: int
    steps: int
    every: int

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("batch", self.batch, 1, 65536), ("context", self.context, 8, 2**24), ("steps", self.steps, 1, 65536),
            ("compact_every", self.every, 1, 65536),
        ):  # fmt: skip
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}: an integer from {low} to {high} is accepted.")
        if self.steps % self.every:
            raise ConfigError(
                f"steps is {self.steps} with compact_every={self.every}: a multiple of that is accepted, so that a mean over the "
                "steps has its share of pauses."
            )

    @property
    def contexts(self) -> list[int]:
        """Tokens of each sequence at the start."""
        return [round(float(n)) for n in np.linspace(self.context, self.context // SHORTEST, self.batch)]

    @property
    def growth(self) -> int:
        """Tokens that a sequence may get."""
        return WARMUP + self.steps + SPARE

    @property
    def longest(self) -> int:
        """Tokens that a sequence may have in the end, and what a contiguous one reserves."""
        return self.context + self.growth

    def capacity(self, block_size: int) -> int:
        """Tokens of KV memory that the batch needs to the end, in blocks with one to spare, or (0) in runs."""
        if not block_size:
            return self.batch * self.longest
        size = block_size
        return sum(-(-(context + self.growth) // size) * size for context in self.contexts) + size


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration in one round.

    itl_s:    seconds from token to token, of each step that counts: all sequences get one in every step.
    compacted: of each, whether the pool was compacted for it.
    launches, attention_launches: of the usual step.
    busy:     worker-seconds inside operations / (threads x wall time); None where the runner cannot tell.
    kv_bytes: KV memory reserved at the end.
    tokens:   that each sequence got.
    """

    itl_s: tuple[float, ...]
    compacted: tuple[bool, ...]
    launches: int
    attention_launches: int
    busy: float | None
    kv_bytes: int
    tokens: tuple[tuple[int, ...], ...]

    @property
    def mean_s(self) -> float:
        """The mean time from token to token, with what else the machine did now and then left out: the median of the usual steps
        and that of the steps with a compaction, by how many there are of each."""
        kinds = [[itl for itl, moved in zip(self.itl_s, self.compacted, strict=True) if moved is kind] for kind in (False, True)]
        return sum(len(times) * statistics.median(times) for times in kinds if times) / len(self.itl_s)


class Laboratory:
    """A model, and what computes it, for loads up to a largest one. The arena is used by one configuration after the other.

    runner: "native" or "torch". threads: None: the CPUs that this process may use. Raises ConfigError or ModelError.
    """

    def __init__(self, model: str, checkpoint: Checkpoint, runner: str, largest: Load, threads: int | None):
        context = checkpoint.config.context
        if largest.longest > context:
            raise ConfigError(
                f"context is {largest.context}: at most {context - largest.growth} is accepted, since {model} has a context of "
                f"{context} tokens and each sequence gets up to {largest.growth} more."
            )
        self._config = EngineConfig(
            model=model, runner=runner, max_num_seqs=largest.batch, max_num_batched_tokens=largest.batch, threads=threads,
            max_model_len=largest.longest,
        )  # fmt: skip
        self._runners = _Runners(self._config, checkpoint, largest.longest)
        self.model = checkpoint.config
        self.causes: tuple[Cause, ...] = tuple(c for c in CAUSES if runner == "native" or c.name != "eager")
        self.spec = KVSpec(self.model.layers, self.model.kv_heads, self.model.head_dim, self._runners.kv_dtype)
        tokens = max(largest.capacity(arm(removed).block_size) for removed in ((), ("block_size",), (INDIRECTION,)))
        needed, limit = tokens * self.spec.token_bytes, machine.memory_limit()
        if needed > limit:
            raise ConfigError(
                f"batch is {largest.batch} and context {largest.context}: their keys and values take {format_bytes(needed)}, and "
                f"this process may use {format_bytes(limit)} in all, weights included; lower one of them."
            )
        self._arena = Arena(self.spec, tokens)
        self._contents = Contents(self.spec)

    def describe(self, of: Arm) -> dict[str, str]:
        """What computes this configuration, by the runner's own words."""
        return self._runners.of(of).describe()

    @property
    def threads(self) -> int:
        """That compute."""
        return self._runners.of(SLOW).threads

    def measure(self, arm: Arm, load: Load) -> Measured:
        """Decode in this configuration, from the same contexts with the same contents each time."""
        runner = self._runners.of(arm)
        clock = RealClock()
        kv = FilledCache(_layout(arm, load), self._arena, self._contents)
        scheduler = Scheduler(
            kv, clock, max_num_seqs=load.batch, max_num_batched_tokens=load.batch, max_model_len=load.longest, max_preemptions=1,
            vocab=self.model.vocab, recorder=Recorder(clock),
        )  # fmt: skip
        core = EngineCore(scheduler, kv, runner, clock, {}, arm.overlapped)
        random = np.random.default_rng(0)
        params = SamplingParams(temperature=0.0, max_tokens=load.growth, ignore_eos=True)
        for i, context in enumerate(load.contexts):
            prompt = random.integers(0, self.model.vocab, context).tolist()
            core.add(Request(id=str(i), prompt=prompt, params=params, arrival=clock.now()))
        tokens: list[list[int]] = [[] for _ in load.contexts]
        lines = []
        for _ in range(WARMUP + load.steps):
            made = core.step()
            lines.append(made.step)
            for update in made.updates:
                tokens[int(update.id)] += update.tokens
        reserved = kv.usage().reserved
        core.close()
        kv.check()
        steps = [decode_step(line) for line in lines]
        return _measured(steps, runner.threads, reserved * self.spec.token_bytes, tokens)


class _Runners:
    """What computes each configuration. Weights are held once; by the torch runner, once for each attention path."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, longest: int):
        self._config, self._checkpoint, self._longest = config, checkpoint, longest
        self._program = build_program(checkpoint.config)
        self._choice = choose_runner(config, self._program)
        self._made: dict[str, Runner] = {}

    @property
    def kv_dtype(self) -> str:
        """Element type of keys and values."""
        return self._choice.kv_dtype

    def of(self, arm: Arm) -> Runner:
        """The runner, set to this configuration."""
        if self._config.runner == "torch":
            return self._runner(arm.attention)
        from octavo.runner.native_runner import NativeRunner

        runner = self._runner("fused")
        assert isinstance(runner, NativeRunner)
        runner.call_by(arm.attention, arm.eager)
        return runner

    def _runner(self, attention: str) -> Runner:
        if attention not in self._made:
            config = replace(self._config, attention=attention)
            self._made[attention] = build_runner(config, self._choice, self._program, self._checkpoint, self._longest)
        return self._made[attention]


def _layout(arm: Arm, load: Load) -> Layout:
    capacity, slots, longest = load.capacity(arm.block_size), load.batch, load.longest
    if arm.layout == "contiguous":
        return Contiguous(capacity, slots, longest, "max-len")
    layout: Layout
    if arm.rebuilt:
        layout = RebuiltPaged(capacity, slots, longest, arm.block_size, load.every)
    else:
        layout = Paged(capacity, slots, longest, arm.block_size)
    scattered(layout, seed=0)
    return layout


def _measured(steps: list[StepRecord], threads: int, kv_bytes: int, tokens: list[list[int]]) -> Measured:
    counted = steps[WARMUP:]
    ends = [step.end for step in steps[WARMUP - 1 :]]
    busy = None
    if all(step.busy_s is not None for step in counted):
        busy = sum(step.busy_s or 0.0 for step in counted) / (threads * (ends[-1] - ends[0]))
    return Measured(
        itl_s=tuple(after - before for before, after in pairwise(ends)),
        compacted=tuple(step.compacted_tokens > 0 for step in counted),
        launches=statistics.mode(step.launches for step in counted),
        attention_launches=statistics.mode(step.attention_launches for step in counted),
        busy=busy,
        kv_bytes=kv_bytes,
        tokens=tuple(map(tuple, tokens)),
    )
