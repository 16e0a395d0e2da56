"""How many of a suite's requests a KV memory holds at once. No request is run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

from octavo.bench.prompts import PromptMaker
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.config import EngineConfig
from octavo.engine.build import build_kv
from octavo.kv.arena import UnbackedArena
from octavo.kv.cache import KVCache
from octavo.models.checkpoint import Checkpoint
from octavo.scheduler.plan import StepPlan

SLOTS = 64  # to begin with
CYCLE = 2**40  # added to the keys of a request's own contents in each cycle: further than any suite's keys reach


def count_fits(config: EngineConfig, workload: Workload, checkpoint: Checkpoint) -> int:
    """How many requests are admitted, in order and in a cycle, each with room for its prompt and all its output, before the first
    one that is not. ``max_num_seqs`` is no bound here, memory is the only one.

    What several requests of the suite share is computed once, as the prefix cache of these settings would; a request's own
    contents are new in every cycle.
    """
    keys = Counter(segment.key for request in workload.requests for segment in request.segments)
    shared = {key for key, times in keys.items() if times > 1}
    if not shared:  # then the prefix index finds nothing, and need not look
        config = replace(config, enable_prefix_caching=False)
    slots = SLOTS
    while True:
        kv = build_kv(
            replace(config, max_num_seqs=slots, max_num_batched_tokens=max(slots, config.max_num_batched_tokens)),
            checkpoint,
            UnbackedArena,
        )
        admitted = _fill(kv, workload, slots, shared, PromptMaker(0, vocab_size=checkpoint.config.vocab))
        if admitted < slots:
            return admitted
        slots *= 2


def _fill(kv: KVCache, workload: Workload, slots: int, shared: set[int], maker: PromptMaker) -> int:
    """Admit requests until one is refused or the slots are used up. Returns how many were."""
    size = len(workload.requests)
    for slot in count():
        if slot == slots:
            return slot
        request = workload.requests[slot % size]
        length = request.prompt_tokens + request.output_tokens
        tokens = [0] * length if kv.prefix is None else _contents(request, slot // size, shared, maker)
        if kv.admit(slot, tokens, expected=length, limit=length) is None:
            return slot
        if kv.prefix is not None:
            kv.view(StepPlan(0, ())).prepare()  # copies that are due are made: another may come
            kv.computed(slot, length)
    raise AssertionError("slots come to an end")


def _contents(request: BenchRequest, cycle: int, shared: set[int], maker: PromptMaker) -> list[int]:
    """Token ids of prompt and output."""
    own = (cycle + 1) * CYCLE
    parts = [segment if segment.key in shared else Segment(own + segment.key, segment.tokens) for segment in request.segments]
    parts.append(Segment(-own - request.index, request.output_tokens))
    return maker.ids(BenchRequest(request.index, tuple(parts), request.output_tokens))
