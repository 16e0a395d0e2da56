"""An EngineCore on the fake runner: the real scheduler and KV cache, without a model."""

from __future__ import annotations

import numpy as np

from octavo.engine.core import EngineCore
from octavo.kv.arena import KVSpec
from octavo.kv.factory import build_cache
from octavo.observe.clock import Clock, RealClock
from octavo.observe.recorder import Recorder
from octavo.request import Request, SamplingParams
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.scheduler import Scheduler
from tests.fake_runner import FakeRunner

VOCAB = 997
SPEC = KVSpec(layers=1, kv_heads=1, head_dim=1, dtype="float32")
PAGED_SPEC = KVSpec(layers=1, kv_heads=3, head_dim=128, dtype="float32")  # 1536 bytes a row: 8 tokens in 3 pages


def fake_engine(
    *,
    layout: str = "paged",
    block_size: int = 16,
    capacity: int = 4096,
    slots: int = 8,
    batch_tokens: int = 64,
    max_model_len: int = 256,
    prefix_caching: bool = False,
    reserve: str = "max-len",
    compaction: str = "incremental",
    compaction_slice: int = 64,
    threshold: int = 64,
    max_preemptions: int = 4,
    eos: tuple[int, ...] = (),
    overlapped: bool = False,
    swap_tokens: int = 0,
    preemption: str = "recompute",
    look_ahead: bool = False,
    clock: Clock | None = None,
    recorder: Recorder | None = None,
) -> EngineCore:
    """An engine of ``slots`` sequences over ``capacity`` tokens of KV cache."""
    kv = build_cache(
        layout,
        PAGED_SPEC if layout == "virtual" else SPEC,
        capacity=capacity,
        slots=slots,
        max_model_len=max_model_len,
        block_size=block_size,
        contiguous_reserve=reserve,
        compaction=compaction,
        compaction_slice=compaction_slice,
        hybrid_threshold=threshold,
        prefix_caching=prefix_caching,
        swap_tokens=swap_tokens,
    )
    clock = clock or RealClock()
    scheduler = Scheduler(
        kv,
        clock,
        max_num_seqs=slots,
        max_num_batched_tokens=batch_tokens,
        max_model_len=max_model_len,
        max_preemptions=max_preemptions,
        vocab=VOCAB,
        eos_token_ids=eos,
        recorder=recorder or Recorder(clock),
        preemption=Preemption(preemption, copied_s=1e6),
        look_ahead=look_ahead,
    )
    # Where one place has two addresses, only the arena itself shows what was written through the other.
    cells = kv.arena.array().view(np.int64)[0, 0, :, 0] if layout == "virtual" else None
    return EngineCore(scheduler, kv, FakeRunner(capacity + swap_tokens, slots, VOCAB, cells), clock, {}, overlapped)


def request(name: str, prompt: list[int], max_tokens: int | None = 8, priority: int = 0, **params: object) -> Request:
    """A greedy request."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(id=name, prompt=prompt, params=sampling, arrival=0.0, priority=priority)


def run(core: EngineCore, steps: int = 100_000) -> dict[str, list[int]]:
    """Step until nothing is left; the tokens of each request. Every step's books are checked; of a large cache, which takes long,
    those of every eighth."""
    tokens: dict[str, list[int]] = {}
    every = 1 if core.kv.capacity <= 1024 else 8
    for step in range(steps):
        if not core.has_work:
            core.check()
            return tokens
        for update in core.step().updates:
            tokens.setdefault(update.id, []).extend(update.tokens)
        if step % every == 0:
            core.check()
    raise AssertionError(f"not done after {steps} steps")
