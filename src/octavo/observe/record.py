"""What a record consists of: a Header, then one line for each step and event. See docs/recorder.md for the format on disk.

Moments are seconds of the engine's clock (``time.monotonic()`` but in a simulation); other times are seconds. Each struct but the
Header is an array on its line, with its tag in front; new fields are added at the end only, with a default.
"""

from __future__ import annotations

from typing import Any

import msgspec

SCHEMA = 1  # raised when a field changes its place or meaning


class Header(msgspec.Struct, kw_only=True):
    """The first line.

    machine:    ``octavo.machine.describe()``.
    config:     the engine's configuration as it really was, name to value.
    monotonic, unix: one moment on the engine's clock and in seconds since 1970, which relates the record to other clocks.
    threads:    of the device; what ``StepRecord.busy_s`` is measured against.
    kv_token_bytes: bytes of a token's keys and values in all layers. kv_capacity: tokens that the KV memory holds.
    block_size: tokens in a block; 0 where the layout has none.
    block_tables_bytes: bytes of the whole table, of which ``StepRecord.table_bytes`` are in use.
    step_fields: the names of a step's values, in order, for readers that do not have this module.
    window:     in a window of a live engine: what was asked for, as {"seconds": 5.0} or {"steps": 100}, and "complete": whether
                the engine still had all of it.
    """

    schema: int = SCHEMA
    format: str = "octavo record"
    octavo: str
    machine: dict[str, Any]
    config: dict[str, str]
    monotonic: float
    unix: float
    threads: int
    kv_token_bytes: int
    kv_capacity: int
    block_size: int
    block_tables_bytes: int
    max_model_len: int
    step_fields: tuple[str, ...] = ()
    window: dict[str, Any] | None = None


class StepRecord(msgspec.Struct, kw_only=True, array_like=True, gc=False, tag="step"):
    """One engine step.

    The step's moments. ``start`` to ``end`` is the whole step; before it lie ``idle_s`` and ``between_s``, back to the end of the
    step before.

    step:      its number, from 1.
    start:     planning begins.
    submitted: the plan and its view go to the runner.
    done:      the runner's result is there.
    end:       what was sampled is committed.

    Its plan.

    sequences: rows of the plan. prefill_tokens, decode_tokens: tokens computed, those sampled by the step before apart.
    running, waiting: requests, once the step was planned.

    Seconds of the engine's thread. start..submitted = schedule_s + allocate_s + extend_s + evict_s + match_s + view_s + queued_s
    and what of compaction_s, table_s and release_s falls there; submitted..done = launch_s + execute_s + sample_s; done..end =
    handover_s + commit_s + offer_s and the release_s of requests that ended. Where scheduling is overlapped, a step's start comes
    before the end of the step before it.

    schedule_s: choosing tokens, without what the KV cache did for it.
    allocate_s: finding room for admitted sequences. extend_s: further blocks for running ones.
    evict_s:    giving up cached prefixes for their room.
    release_s:  taking memory back: requests that ended, were preempted, or were aborted since the step before.
    match_s:    hashing prompts and looking them up in the prefix index. offer_s: entering blocks that became full.
    compaction_s: deciding on moves that join holes (contiguous); the moves themselves are part of execute_s.
    table_s:    writing whole rows of block tables. Single entries are part of extend_s, and of allocate_s where a sequence has
                only one.
    view_s:     making the view.
    launch_s:   turning plan and view into what the device reads, and handing it over.
    execute_s:  the decoder. sample_s: choosing tokens from its logits.
    commit_s:   taking in what was sampled, without what the KV cache did for it.
    wait_s:     time in which this thread could do nothing but wait for the device: execute_s + sample_s, or less where
                scheduling is overlapped.
    idle_s:     since the step before, until there was a request to compute.
    between_s:  the rest of the time since the step before: taking requests, sending what was sampled, recording, and whatever
                else the thread did.
    gc_s, gc_count: of Python's garbage collections since the step before, wherever they struck; part of the times above.

    The device.

    busy_s:   worker-seconds inside operations, waiting excluded; None where the runner cannot tell (torch).
    launches: calls from Python into compiled computing code. attention_launches: of these, those that compute attention and
              nothing else: 0 where one call is the whole step.
    attention_s: of execute_s, in attention. kv_read_bytes: keys and values that attention had to read at least once: those before
              and in each row, within the window, in every layer.
    gather_s, gather_bytes: of attention_s, collecting keys and values before computing with them; bytes written by that, padding
              included. 0 where they are read in place.
    moved_tokens: copied within the arena before the step: copy on write, and in the contiguous layout prefixes and the two below.
    compacted_tokens: of these, to join holes. grown_tokens: of these, because a run was full (reserve grow).
    fault_pages: that the step writes and that were not brought in before it began: each a page fault at most (virtual).

    The KV cache while the step ran, in tokens: what the step computes is used, what it ends is not released yet.

    kv_reserved, kv_used, kv_wasted_inside, kv_wasted_outside, kv_shared, kv_cached: as in ``octavo.kv.usage.Usage``.
    table_bytes: of block tables in use. table_written_bytes: written for this step.
    evicted_blocks: cached blocks given up.

    Since the step before.

    preemptions: sequences put out. recomputed_tokens: tokens to be computed again because of that, counted when they come back.
    swapped_out_tokens, swapped_in_tokens: of preempted sequences, copied to the swap space and back before the step. swap_s:
                       deciding on these copies, part of the engine's thread's time.
    prefix_queries: tokens of admitted sequences, where there is a prefix index. prefix_hits: of these, found in it.
    prefix_rounding: of these, beyond their last whole block and not found. prefix_reusable: tokens of admitted sequences that a
                     prefix cache which never forgets would have found; counted without an index too.

    Overlapped scheduling; all 0 without it.

    queued_s:   planned and ready, until the step before it was computed.
    handover_s: computed, until the engine's thread took the result: it wakes up, or is busy.
    hidden_s:   of planning, view and commit, what fell while another step computed. It costs no wall time where a core is free
                for it; where all cores compute, it is taken from them.
    """

    step: int
    start: float
    submitted: float
    done: float
    end: float

    sequences: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    running: int = 0
    waiting: int = 0

    schedule_s: float = 0.0
    allocate_s: float = 0.0
    extend_s: float = 0.0
    evict_s: float = 0.0
    release_s: float = 0.0
    match_s: float = 0.0
    offer_s: float = 0.0
    compaction_s: float = 0.0
    table_s: float = 0.0
    view_s: float = 0.0
    launch_s: float = 0.0
    execute_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    wait_s: float = 0.0
    idle_s: float = 0.0
    between_s: float = 0.0
    gc_s: float = 0.0
    gc_count: int = 0

    busy_s: float | None = None
    launches: int = 0
    attention_launches: int = 0
    attention_s: float = 0.0
    kv_read_bytes: int = 0
    gather_s: float = 0.0
    gather_bytes: int = 0
    moved_tokens: int = 0
    compacted_tokens: int = 0
    grown_tokens: int = 0
    fault_pages: int = 0

    kv_reserved: int = 0
    kv_used: int = 0
    kv_wasted_inside: int = 0
    kv_wasted_outside: int = 0
    kv_shared: int = 0
    kv_cached: int = 0
    table_bytes: int = 0
    table_written_bytes: int = 0
    evicted_blocks: int = 0

    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_out_tokens: int = 0
    swapped_in_tokens: int = 0
    swap_s: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_rounding: int = 0
    prefix_reusable: int = 0

    queued_s: float = 0.0
    handover_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The whole step, from planning to commit."""
        return self.end - self.start

    @property
    def prepare_s(self) -> float:
        """All that the KV cache did for the step."""
        return (
            self.allocate_s + self.extend_s + self.evict_s + self.release_s + self.match_s + self.offer_s + self.compaction_s
            + self.table_s + self.view_s + self.swap_s
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def kv_read_rate(self) -> float | None:
        """Bytes of keys and values that attention read per second; None where its time is not known."""
        return self.kv_read_bytes / self.attention_s if self.attention_s > 0 else None

    @property
    def span_s(self) -> float:
        """The time that is this step's alone: from planning to commit; where scheduling is overlapped, from the result of the
        step before, or from planning where that came later, to its own result."""
        begin = self.submitted if self.queued_s > 0 else self.start
        return (self.done if self.handover_s > 0 else self.end) - begin

    def busy_share(self, threads: int) -> float | None:
        """Worker-seconds inside operations / (threads x ``span_s``): what the device did of what it could have done."""
        return None if self.busy_s is None or self.span_s <= 0 else self.busy_s / (threads * self.span_s)


decode_step = msgspec.json.Decoder(StepRecord).decode  # of a step's line


class Arrived(msgspec.Struct, array_like=True, gc=False, tag="arrived"):
    """A request was queued. ``arrival``: when it was made, which its latencies count from."""

    moment: float
    id: str
    arrival: float
    prompt_tokens: int
    max_tokens: int | None
    priority: int


class Scheduled(msgspec.Struct, array_like=True, gc=False, tag="scheduled"):
    """A request was admitted, for the first time or after a preemption. ``tokens``: that it has; ``cached``: of these, found in
    the prefix cache."""

    moment: float
    id: str
    step: int
    slot: int
    tokens: int
    cached: int


class FirstToken(msgspec.Struct, array_like=True, gc=False, tag="first_token"):
    """A request's first token was sampled."""

    moment: float
    id: str
    step: int


class Preempted(msgspec.Struct, array_like=True, gc=False, tag="preempted"):
    """A request was put out. ``tokens``: computed ones that were released."""

    moment: float
    id: str
    step: int
    tokens: int


class Finished(msgspec.Struct, array_like=True, gc=False, tag="finished"):
    """A request ended. ``reason``: a FinishReason, "stop" also where a stop string ended it."""

    moment: float
    id: str
    step: int
    reason: str
    output_tokens: int


class TextTime(msgspec.Struct, array_like=True, gc=False, tag="text"):
    """Seconds that turning a request's tokens into text took, stop strings included: in the server's process, or in ``LLM``."""

    moment: float
    id: str
    seconds: float


class Collection(msgspec.Struct, array_like=True, gc=False, tag="gc"):
    """A garbage collection of Python in the engine's process, from ``moment`` on. ``collected``: objects."""

    moment: float
    generation: int
    seconds: float
    collected: int


class Dropped(msgspec.Struct, array_like=True, gc=False, tag="dropped"):
    """Lines that are not in this file, because they could not be written in time."""

    moment: float
    lines: int


RequestEvent = Arrived | Scheduled | FirstToken | Preempted | Finished | TextTime
Line = StepRecord | RequestEvent | Collection | Dropped
