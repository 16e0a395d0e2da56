"""Growth: what a decode step takes, by context and batch, over a KV cache that was filled without computing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from octavo import machine
from octavo.bench.interrupt import Interrupt
from octavo.bench.report import Json
from octavo.config import EngineConfig
from octavo.engine.build import build_engine, kv_spec
from octavo.engine.core import EngineCore
from octavo.kv.arena import DTYPE_BYTES, KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.factory import taken
from octavo.kv.view import KVView
from octavo.models.checkpoint import Checkpoint
from octavo.runner.base import Runner
from octavo.scheduler.plan import Logits, Row, SlotSampling, StepPlan
from octavo.sweep.aged import age, grow_side_by_side
from octavo.sweep.point import Setup
from octavo.sweep.runners import SharedRunner
from octavo.units import format_bytes

WARMUP_STEPS = 2
LEAST_STEPS, MOST_STEPS = 5, 25
ENOUGH_S = 0.4  # of steps of one context and batch
PATTERN = 1021  # different rows of keys and values: a prime, so that they fall on a block's places in all ways
TOKEN = 1


def growth_config(setup: Setup, config: EngineConfig) -> EngineConfig:
    """The settings to measure a setup's growth with: as they are, with all the KV memory that an engine here may take unasked.
    What contiguous reserves ahead makes no difference to a step, so it reserves no more than is used."""
    memory = max(config.kv_memory or 0, machine.default_kv_memory())
    reserve = "request" if setup.layout == "contiguous" else None
    return replace(config, kv_memory=memory, contiguous_reserve=reserve, enable_prefix_caching=False)


def measure_growth(
    setup: Setup,
    config: EngineConfig,
    contexts: Sequence[int],
    batches: Sequence[int],
    checkpoint: Checkpoint,
    runners: SharedRunner,
    interrupt: Interrupt,
) -> Json | None:
    """Step times of one setup: {"points": [{"context", "batch", "step_s"}], "skipped": [{"context", "batch", "reason"}]}. None
    where it was interrupted.

    A step computes one token for each of ``batch`` sequences, each of which has ``context`` tokens with it. step_s: seconds in
    ``Runner.execute``, the median of LEAST_STEPS to MOST_STEPS steps, after WARMUP_STEPS.
    """
    config = growth_config(setup, config)
    core = build_engine(_just_enough(config, contexts, batches, checkpoint), checkpoint, runners)
    found: Json = {"points": [], "skipped": []}
    try:
        core.kv.snapshots(False)
        age(core.kv, max(batches))
        for context in contexts:
            if context > core.scheduler.max_model_len:
                reason = f"a context of {context} is beyond max_model_len={core.scheduler.max_model_len}."
                found["skipped"] += [{"context": context, "batch": batch, "reason": reason} for batch in batches]
                continue
            if not _measure_context(core, context, batches, found, interrupt):
                return None
    finally:
        core.close()
    return found


def _just_enough(config: EngineConfig, contexts: Sequence[int], batches: Sequence[int], checkpoint: Checkpoint) -> EngineConfig:
    """The settings with no more KV memory than the largest combination takes, or one request of ``max_model_len``."""
    assert config.max_model_len is not None
    assert config.kv_memory is not None
    spec, block_size = kv_spec(config, checkpoint), config.block_size or 1
    longest = max((context for context in contexts if context <= config.max_model_len), default=0)
    all_of_them = max(batches) * taken(config.kv_layout, spec, longest, block_size)
    tokens = max(all_of_them, taken(config.kv_layout, spec, config.max_model_len, block_size))
    return replace(config, kv_memory=min(config.kv_memory, tokens * spec.token_bytes))


def _measure_context(core: EngineCore, context: int, batches: Sequence[int], found: Json, interrupt: Interrupt) -> bool:
    """Measure all batches of one context. False where it was interrupted."""
    kv, order = core.kv, random.Random(context)
    room = kv.capacity // taken(kv.layout.name, kv.arena.spec, context, kv.block_size or 1)
    most = min(max(batches), len(kv.layout.filled), room)
    lengths = grow_side_by_side(kv, dict.fromkeys(range(most), context), order)
    whole = [slot for slot, length in lengths.items() if length == context]
    for slot in lengths.keys() - set(whole):  # what they hold, others may need
        kv.release(slot)
    for slot in whole:
        kv.computed(slot, context - 1)
    fill(kv, whole, context)
    view = kv.view(StepPlan(0, ()))
    view.prepare()
    try:
        for batch in batches:
            if batch > len(whole):
                slots, memory = len(kv.layout.filled), format_bytes(kv.arena.spec.token_bytes * kv.capacity)
                reason = (
                    f"a batch of {batch} is beyond max_num_seqs={slots}."
                    if batch > slots
                    else f"{batch} sequences of {context} tokens do not fit into {memory}."
                )
                found["skipped"].append({"context": context, "batch": batch, "reason": reason})
                continue
            if interrupt.wanted:
                return False
            step_s = time_steps(core.runner, view, whole[:batch], context)
            found["points"].append({"context": context, "batch": batch, "step_s": step_s})
    finally:
        for slot in whole:
            kv.release(slot)
        kv.view(StepPlan(0, ())).prepare()
    return True


def fill(kv: KVCache, slots: Sequence[int], context: int) -> None:
    """Give the sequences in these slots keys and values: ordinary numbers, never zeros, which a processor may treat apart."""
    view = kv.view(StepPlan(0, ()))
    view.prepare()
    if not slots:
        return
    memory, spec = kv.arena.array(), kv.arena.spec
    pattern = _pattern(spec)
    rows = pattern[np.arange(context) % PATTERN]
    for slot in slots:
        places = view.token_indices(np.asarray(slot), np.arange(context))
        for layer in range(spec.layers):
            memory[layer, 0, places] = rows
            memory[layer, 1, places] = rows


def _pattern(spec: KVSpec) -> npt.NDArray[np.uint8]:
    """PATTERN rows of keys or values, uint8 ``[PATTERN, row_bytes]``: normally distributed, in the arena's own format."""
    values = np.random.default_rng(0).standard_normal((PATTERN, spec.kv_heads * spec.head_dim)).astype(np.float32)
    if spec.dtype == "int8":
        scales = np.full((PATTERN, spec.kv_heads), 0.02, np.float32)
        return np.hstack([np.clip(np.rint(values * 50), -127, 127).astype(np.int8).view(np.uint8), scales.view(np.uint8)])
    if spec.dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype({2: np.float16, 4: np.float32}[DTYPE_BYTES[spec.dtype]]).view(np.uint8)


def time_steps(runner: Runner, view: KVView, slots: Sequence[int], context: int) -> float:
    """Seconds of a decode step of the sequences in these slots, of ``context`` tokens each with the one that it computes. The
    same step is computed again and again: it writes what is there already."""
    opened = tuple(SlotSampling(slot, 0.0, 1.0, 0, 0, 0) for slot in slots)
    rows = tuple(Row(slot, context - 1, 1, [TOKEN], Logits.LAST) for slot in slots)
    runner.execute(StepPlan(1, rows, opened), view)
    plan = StepPlan(2, rows)
    for _ in range(WARMUP_STEPS - 1):
        runner.execute(plan, view)
    seconds: list[float] = []
    while len(seconds) < LEAST_STEPS or (len(seconds) < MOST_STEPS and sum(seconds) < ENOUGH_S):
        begin = time.perf_counter()
        runner.execute(plan, view)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
