"""Scheduler: decides what each step computes. Never sees a block table, an address or a tensor."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

from octavo.errors import RequestError
from octavo.kv.cache import KVCache
from octavo.observe.clock import Clock
from octavo.observe.recorder import NoRecorder, Recorder
from octavo.request import FinishReason, Request, TokenUpdate
from octavo.runner.base import StepResult
from octavo.scheduler.expectation import OutputExpectation
from octavo.scheduler.forecast import peak_tokens
from octavo.scheduler.plan import Logits, Row, SlotSampling, StepPlan
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.queues import RunningSet, WaitingQueue
from octavo.scheduler.sequence import Sequence


class Scheduler:
    """Continuous batching: every step takes one token of each decoding sequence, then prefill chunks, then new sequences, up
    to ``max_num_batched_tokens``. A sequence is admitted only when its whole prompt fits; when a decoding one finds no room,
    the last in rank is preempted: its memory is released; later it is computed again, prompt and output, or copied back from the
    swap space (``preemption``), and goes on with the same tokens. Order is by priority, then arrival.

    look_ahead: a sequence waits while the batch with it would, as far as one can tell, come to need more memory than there is.

    A sequence that was preempted ``max_preemptions`` times is admitted again only with room for all it may ever hold, and is
    then never a victim.

    A step may be planned while the one before it computes: its rows then refer to tokens that nobody knows yet. Nobody is
    preempted for such a step; who finds no room waits, and ``starved`` asks for a plan made when nothing is under way. What is
    under way for a request that has ended meanwhile is computed and dropped, and its slot and memory return once that step is
    committed.

    starved: whether the last plan left out a sequence for want of memory that a preemption may make.
    planned_tokens, planned_decodes: of the last plan, its tokens and those of them that continue what the step before sampled.
    preemptions, recomputed_tokens, prompt_tokens, generation_tokens: counters since start. A token that a preemption loses counts
    as recomputed once its sequence is admitted again.
    """

    def __init__(
        self,
        kv: KVCache,
        clock: Clock,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_preemptions: int,
        vocab: int,
        eos_token_ids: Iterable[int] = (),
        seed: int | None = 0,
        recorder: Recorder | None = None,
        preemption: Preemption | None = None,
        look_ahead: bool = False,
    ):
        self.kv = kv
        self.clock = clock
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.max_preemptions = max_preemptions
        self.look_ahead = look_ahead
        self.preemption = preemption or Preemption()
        self.vocab = vocab
        self.eos_token_ids = frozenset(eos_token_ids)
        self.waiting = WaitingQueue()
        self.running = RunningSet()
        self.recorder = recorder or NoRecorder()
        self.starved = False
        self.planned_tokens = 0
        self.planned_decodes = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.expectation = OutputExpectation()
        self._sequences: dict[str, Sequence] = {}
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._random = random.Random(seed)
        self._arrivals = 0
        self._steps = 0
        self._under_way: deque[list[Sequence]] = deque()  # of each step that is planned and not committed, whose rows these are
        self._leaving = 0  # sequences that have ended and still hold their slots

    def __len__(self) -> int:
        """Requests that wait or run, and those that have ended and still hold memory."""
        return len(self._sequences) + self._leaving

    def ids(self) -> list[str]:
        """The ids of all requests that wait or run."""
        return list(self._sequences)

    # ---- requests come and go

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError where it can never be served, with the numbers."""
        prompt, asked = len(request.prompt), request.params.max_tokens
        if request.id in self._sequences:
            raise RequestError(f"request id {request.id} is in use: ids of live requests must differ.", "request_id")
        if not prompt:
            raise RequestError("the prompt is empty: at least one token is needed.", "prompt")
        if min(request.prompt) < 0 or max(request.prompt) >= self.vocab:
            raise RequestError(f"the prompt holds a token id outside 0..{self.vocab - 1}.", "prompt")
        if any(token >= self.vocab for token in request.params.stop_token_ids or ()):
            raise RequestError(f"stop_token_ids holds an id outside 0..{self.vocab - 1}.", "stop_token_ids")
        if prompt + (asked or 1) > self.max_model_len:
            wanted = f"{prompt} prompt tokens" + (f" and max_tokens {asked}" if asked else " and at least 1 new token")
            raise RequestError(
                f"{wanted} make {prompt + (asked or 1)} tokens: at most {self.max_model_len} fit into a request (max_model_len).",
                "max_tokens" if asked and prompt < self.max_model_len else "prompt",
            )
        seed = self._random.getrandbits(63) if request.params.seed is None else request.params.seed
        limit = self.max_model_len if asked is None else prompt + asked
        sequence = Sequence(request, self._arrivals, limit, seed)
        self._arrivals += 1
        self._sequences[request.id] = sequence
        self.waiting.push(sequence)
        self.recorder.arrived(request.id, request.arrival, prompt, asked, request.priority)

    def abort(self, request_id: str, stopped: bool = False) -> TokenUpdate | None:
        """Drop a request wherever it is; its memory is free on return. None where it is not known (any more).

        stopped: it found its end, a stop string, and counts as finished.
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        sequence.aborted = True
        if stopped:
            self.expectation.observe(sequence)
        if sequence.slot < 0:
            self.waiting.discard(sequence)
            if sequence.swapped is not None:
                self.kv.forget(sequence.swapped)
        else:
            self._end(sequence)
        reason = FinishReason.STOP if stopped else FinishReason.ABORT
        self.recorder.finished(self.clock.now(), request_id, self._steps, reason, sequence.drawn)
        return self._update(sequence, [], FinishReason.ABORT)

    # ---- a step

    def plan(self) -> StepPlan:
        """The next step. Everything in it has its memory already. While a step is under way it may have no rows."""
        rows: list[Row] = []
        opened: list[SlotSampling] = []
        self.starved = False
        self._under_way.append([])
        preempted = self.preemptions
        budget = self._plan_decodes(rows)
        self.planned_decodes = len(rows)
        budget = self._plan_prefills(rows, budget)
        if self.preemptions == preempted:  # who was just put out must not be overtaken by whoever fits into its place
            budget = self._admit(rows, opened, budget)
        self.planned_tokens = self.max_num_batched_tokens - budget
        self._steps += 1
        return StepPlan(self._steps, tuple(rows), tuple(opened))

    def drop_plan(self) -> None:
        """The last plan had no rows and will not be carried out."""
        assert not self._under_way[-1], "a plan that has rows is carried out"
        self._under_way.pop()
        self._steps -= 1

    def _plan_decodes(self, rows: list[Row]) -> int:
        """One token of every decoding sequence, in order of rank. Returns the tokens that are left."""
        at = 0
        while at < len(self.running):  # preemption shortens the list, never before ``at``
            sequence = self.running[at]
            if not sequence.decoding or sequence.length >= sequence.limit:  # or it ends with the step under way
                at += 1
            elif self.kv.extend(sequence.slot, sequence.length):
                self._take(sequence, 1, None, rows)
                at += 1
            elif len(self._under_way) > 1:
                self.starved = True
                at += 1
            else:
                self._preempt(self._victim())
        return self.max_num_batched_tokens - len(rows)

    def _plan_prefills(self, rows: list[Row], budget: int) -> int:
        """Chunks of the sequences that are not decoding yet."""
        for sequence in self.running:
            left = len(sequence.tokens) - sequence.planned
            if left > 0 and budget and not sequence.decoding:
                budget -= self._take_chunk(sequence, min(left, budget), rows)
        return budget

    def _admit(self, rows: list[Row], opened: list[SlotSampling], budget: int) -> int:
        """New sequences in order of rank, while there are tokens, slots and memory for the first in line. Returns the tokens that
        are left."""
        while budget and self._free_slots:
            sequence = self.waiting.first()
            if sequence is None:
                break
            if self.look_ahead and not self._will_fit(sequence):
                break
            slot = self._free_slots[-1]
            cached = self.kv.admit(
                slot,
                sequence.tokens,
                expected=self.expectation.final_length(sequence),
                limit=sequence.limit,
                whole=self._protected(sequence),
            )
            if cached is None:
                assert len(self.running) or self._leaving, "an empty cache holds any request that was accepted"
                break
            self.waiting.pop()
            self._free_slots.pop()
            sequence.slot, sequence.cached = slot, cached
            computed = cached
            if sequence.swapped is not None:
                computed, sequence.swapped = self.kv.swap_in(slot, sequence.swapped, cached), None
            sequence.computed = sequence.planned = computed
            sequence.admitted = len(sequence.tokens)
            now = self.clock.now()
            sequence.scheduled = sequence.scheduled or now
            self.recomputed_tokens += max(0, sequence.lost - computed)
            self.recorder.scheduled(now, sequence.request.id, self._steps + 1, slot, len(sequence.tokens), cached)
            self.running.add(sequence)
            p = sequence.request.params
            opened.append(SlotSampling(slot, p.temperature, p.top_p, p.top_k, sequence.seed, sequence.drawn))
            budget -= self._take_chunk(sequence, min(len(sequence.tokens) - computed, budget), rows)
        return budget

    def _take_chunk(self, sequence: Sequence, length: int, rows: list[Row]) -> int:
        self._take(sequence, length, sequence.tokens[sequence.planned : sequence.planned + length], rows)
        return length

    def _take(self, sequence: Sequence, length: int, tokens: list[int] | None, rows: list[Row]) -> None:
        last = sequence.planned + length == sequence.length
        rows.append(Row(sequence.slot, sequence.planned, length, tokens, Logits.LAST if last else Logits.NONE))
        self._under_way[-1].append(sequence)
        sequence.planned += length
        sequence.rows += 1
        sequence.pending += last

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenUpdate]:
        """Take in what the oldest step under way sampled. Requests that end here have released their memory on return, unless a
        row of the next step, which is planned already, still needs it."""
        updates: list[TokenUpdate] = []
        sampled = iter(result.tokens.tolist())
        now = self.clock.now()
        for row, sequence in zip(plan.rows, self._under_way.popleft(), strict=True):
            sequence.rows -= 1
            if row.tokens is not None:
                self.prompt_tokens += row.length
            token = -1 if row.logits is Logits.NONE else next(sampled)
            if sequence.ended:
                if not sequence.rows:
                    self._leaving -= 1
                    self._give_back(sequence)
                continue
            sequence.computed += row.length
            self.kv.computed(sequence.slot, sequence.computed)
            if row.logits is Logits.NONE:
                continue
            sequence.pending -= 1
            sequence.tokens.append(token)
            if not sequence.first_token:
                sequence.first_token = now
                self.recorder.first_token(now, sequence.request.id, plan.step)
            self.generation_tokens += 1
            finish, stop_token = self._finish(sequence, token)
            if finish is not None:
                self._end(sequence)
                del self._sequences[sequence.request.id]
                self.expectation.observe(sequence)
                self.recorder.finished(now, sequence.request.id, plan.step, finish, sequence.drawn)
            updates.append(self._update(sequence, [token], finish, stop_token))
        return updates

    def lose(self) -> None:
        """The oldest step under way failed. What it would have sampled never comes: its requests can only be aborted."""
        for sequence in self._under_way.popleft():
            sequence.rows -= 1
            if sequence.ended and not sequence.rows:
                self._leaving -= 1
                self._give_back(sequence)

    def _finish(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
        """Why the sequence ends with this token, if it does, and which of its stop tokens that is, if it is one."""
        params = sequence.request.params
        if token in self.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP, None
        if token in sequence.stops:
            return FinishReason.STOP, token
        return (FinishReason.LENGTH if len(sequence.tokens) >= sequence.limit else None), None

    # ---- memory

    def _will_fit(self, sequence: Sequence) -> bool:
        """Whether this one and those that run will have room until they end, as far as one can tell. Otherwise it waits:
        admitting it would cost a preemption, and each preemption makes the next likelier."""
        if not len(self.running):
            return True
        usage, likely = self.kv.usage(), self.expectation.likely_length
        batch = [*self.running, sequence]
        peak = peak_tokens((s.length, max(0, likely(s) - s.length)) for s in batch)
        return peak - usage.shared <= usage.capacity - usage.wasted_outside

    def _protected(self, sequence: Sequence) -> bool:
        return sequence.preemptions >= self.max_preemptions

    def _victim(self) -> Sequence:
        """The last in rank that may be preempted. Whoever found no room may, so there is one."""
        return next(s for s in reversed(self.running) if not self._protected(s))

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.computed and self.preemption.swaps:
            sequence.swapped = self.kv.swap_out(sequence.slot)
        self.running.remove(sequence)
        self._give_back(sequence)
        self.recorder.preempted(sequence.request.id, self._steps + 1, sequence.computed)
        sequence.lost = sequence.computed
        sequence.computed = sequence.planned = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.push(sequence)

    def _end(self, sequence: Sequence) -> None:
        """It runs no more: slot and memory return, now or, where a step under way has a row of it, with that step."""
        self.running.remove(sequence)
        sequence.ended = True
        if sequence.rows:
            self._leaving += 1
        else:
            self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        """Its slot and its memory."""
        self.kv.release(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def _update(
        self, sequence: Sequence, tokens: list[int], finish: FinishReason | None, stop_token: int | None = None
    ) -> TokenUpdate:
        return TokenUpdate(
            id=sequence.request.id,
            tokens=tokens,
            finish=None if finish is None else finish.value,
            stop_token=stop_token,
            cached=sequence.cached,
            scheduled=sequence.scheduled,
            first_token=sequence.first_token,
        )
