"""Every layout, driven at random beside a plain model of what it promises: each sequence reads back its own tokens, nobody
writes where another reads, refused calls change nothing, and the books balance after every step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from octavo.kv.contiguous import LEAST_GROWTH
from tests.kv.memory import NOTHING, SPEC, Memory, cache, contents

SLOTS, MAX_MODEL_LEN = 6, 40
picks = st.integers(0, 1000)


@dataclass
class Running:
    """A sequence as its owner knows it."""

    tokens: list[int]
    limit: int
    computed: int
    granted: int  # positions below this were promised
    whole: bool = False


@dataclass
class Books:
    """All that a refused call could have changed."""

    usage: object
    stats: object
    places: dict[int, list[int]] = field(default_factory=dict)
    cached: list[int] = field(default_factory=list)


class LayoutMachine(RuleBasedStateMachine):
    layout = "paged"
    reserve = "max-len"
    compaction = "incremental"

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 8, 16]),
        capacity=st.integers(MAX_MODEL_LEN, 4 * MAX_MODEL_LEN),
        threshold=st.sampled_from([6, 20, 30]),
        prefix_caching=st.booleans(),
        slice_tokens=st.sampled_from([1, 5, 1000]),
    )
    def start(self, block_size: int, capacity: int, threshold: int, prefix_caching: bool, slice_tokens: int) -> None:
        self.to_the_token = self.layout == "contiguous"  # prefixes are copied, to whatever token
        self.in_slices = self.to_the_token and self.reserve != "max-len" and self.compaction == "incremental"
        self.kv = cache(
            self.layout,
            capacity=capacity,
            slots=SLOTS,
            max_model_len=MAX_MODEL_LEN,
            block_size=block_size,
            contiguous_reserve=self.reserve,
            compaction=self.compaction,
            compaction_slice=slice_tokens * SPEC.token_bytes,
            hash_unit=block_size,
            hybrid_threshold=threshold,
            prefix_caching=prefix_caching,
        )
        self.unit = 1 if self.to_the_token else block_size
        self.memory = Memory(self.kv)
        self.running: dict[int, Running] = {}
        self.past: list[list[int]] = [[]]
        self.known: set[tuple[int, ...]] = set()  # prefixes of whole blocks that were ever computed

    # ---- what a scheduler does

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(
        stem=picks,
        cut=picks,
        tail=st.lists(st.integers(0, 2), max_size=6),
        more=st.integers(0, 20),
        guess=st.integers(0, 10),
        whole=st.booleans(),
        patient=st.booleans(),
    )
    def admit(self, stem: int, cut: int, tail: list[int], more: int, guess: int, whole: bool, patient: bool) -> None:
        old = self.past[stem % len(self.past)]
        tokens = (old[: cut % (len(old) + 1)] + tail or [0])[:MAX_MODEL_LEN]
        limit = min(len(tokens) + more, self.kv.longest)
        slot = min(set(range(SLOTS)) - set(self.running))
        before = self.books()
        surely = self.surely_fits(max(limit, len(tokens)) if whole else len(tokens), limit)
        how = {"expected": min(limit, len(tokens) + guess), "limit": limit, "whole": whole}
        reused = self.kv.admit(slot, tokens, **how)
        length = max(limit, len(tokens)) if whole else len(tokens)
        if reused is None and self.in_slices and self.enough(length, limit):
            assert (before.usage.reserved, before.usage.used) == (self.kv.usage().reserved, self.kv.usage().used)
            for _ in range(1000 if patient else 0):
                self.memory.prepare()
                self.balance()
                self.nobody_writes_where_another_reads()
                reused = self.kv.admit(slot, tokens, **how)
                if reused is not None:
                    break
            assert not patient or reused is not None, "the hole never comes"
            if reused is None:
                return
        if reused is None:
            assert self.books() == before
            assert not surely or length > self.kv.longest
            return
        assert reused < len(tokens)
        assert reused == 0 or tuple(tokens[: -(-reused // self.unit) * self.unit]) in self.known
        self.running[slot] = Running(tokens, limit, reused, length, whole)
        self.past.append(tokens)

    @precondition(lambda self: self.running)
    @rule(pick=picks, token=st.integers(0, 2))
    def extend(self, pick: int, token: int) -> None:
        slot = self.pick(pick)
        s = self.running[slot]
        if len(s.tokens) >= s.limit:
            return
        before = self.books()
        length = len(s.tokens) + 1
        if self.kv.extend(slot, length):
            s.tokens.append(token)
            s.granted = max(s.granted, length)
        else:
            assert self.books() == before
            assert not s.whole or s.granted < length
            if self.reserve == "grow":
                assert self.kv.capacity - self.kv.usage().reserved < LEAST_GROWTH
                return
            assert not self.kv.usage().capacity - self.kv.usage().reserved - self.kv.usage().wasted_outside >= 2 * self.unit

    @precondition(lambda self: self.running)
    @rule(which=st.sets(st.integers(0, SLOTS - 1)), length=st.integers(1, 12))
    def step(self, which: set[int], length: int) -> None:
        self.memory.prepare()
        for slot in which & set(self.running):
            s = self.running[slot]
            end = min(s.computed + length, len(s.tokens), s.granted)
            if end > s.computed:
                self.memory.write(slot, s.computed, s.tokens, end)
                s.computed = end
                self.known |= {tuple(s.tokens[:n]) for n in range(self.unit, end + 1, self.unit)}
        for slot, s in self.running.items():
            assert self.memory.read(slot, s.computed) == contents(s.tokens[: s.computed])

    @precondition(lambda self: 0 < len(self.running) < SLOTS)
    @rule(pick=picks, cut=picks, tail=st.lists(st.integers(0, 2), max_size=3))
    def fork(self, pick: int, cut: int, tail: list[int]) -> None:
        parent = self.pick(pick)
        p = self.running[parent]
        child = min(set(range(SLOTS)) - set(self.running))
        tokens = p.tokens[: cut % (p.computed + 1)] if cut % 3 else p.tokens[: p.computed]
        shared = len(tokens)
        if shared == p.computed:  # anything may follow what the parent has computed
            tokens = (tokens + tail)[: p.limit]
        before = self.books()
        if self.kv.fork(parent, child, tokens):
            self.running[child] = Running(tokens, p.limit, shared, len(tokens))
        elif self.reserve == "grow":  # the fork fitted, its further tokens did not: kept runs may have gone
            assert self.books().places == before.places
        else:
            assert self.books() == before

    @precondition(lambda self: self.running)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        slot = self.pick(pick)
        self.kv.release(slot)
        del self.running[slot]

    @rule()
    def reset_prefix(self) -> None:
        self.kv.reset_prefix()
        self.known.clear()
        for s in self.running.values():  # what they compute later is still offered, and leads on from what was forgotten
            self.known |= {tuple(s.tokens[:n]) for n in range(self.unit, s.computed + 1, self.unit)}

    @rule()
    def scribble(self) -> None:
        """Memory that nobody reads, and that no pending copy reads, may be overwritten by anyone."""
        if self.layout == "contiguous":
            space = self.kv.layout._space  # type: ignore[attr-defined]
            moves = space.moves
            kept = {t for run in space.kept for t in range(run.start, run.start + run.filled)}
        else:
            moves = self.kv.layout._moves  # type: ignore[attr-defined]
            kept = {block * self.unit + i for block in self.kv.layout.offered() for i in range(self.unit)}
        if moves:
            return
        read = kept | {t for slot, s in self.running.items() for t in self.memory.places(slot, 0, s.computed)}
        self.memory.cells[:, sorted(set(range(self.kv.capacity)) - read)] = NOTHING

    # ---- what must hold

    @invariant()
    def balance(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check()
        usage = self.kv.usage()
        held = {t for slot, s in self.running.items() for t in self.memory.places(slot, 0, s.computed)}
        assert usage.used == len(held)
        assert usage.used + usage.wasted_inside == usage.reserved
        assert usage.reserved + usage.wasted_outside <= usage.capacity
        assert min(usage.wasted_inside, usage.wasted_outside, usage.shared, usage.cached) >= 0
        if not self.running:
            assert (usage.reserved, usage.used, usage.shared, usage.fraction) == (0, 0, 0, 0.0)

    @invariant()
    def nobody_writes_where_another_reads(self) -> None:
        if not hasattr(self, "kv"):
            return
        places = {slot: self.memory.places(slot, 0, s.granted) for slot, s in self.running.items()}
        for slot, own in places.items():
            assert len(set(own)) == len(own)
            assert all(0 <= t < self.kv.capacity for t in own)
            writable = set(own[self.running[slot].computed :])
            for other, theirs in places.items():
                assert other == slot or writable.isdisjoint(theirs)

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            for slot in list(self.running):
                self.release(slot)
            self.running = {}
            self.balance()

    # ---- helpers

    def pick(self, number: int) -> int:
        return sorted(self.running)[number % len(self.running)]

    def books(self) -> Books:
        pool = getattr(self.kv.layout, "pool", None)
        return Books(
            self.kv.usage(),
            copy.copy(self.kv.prefix_stats),
            {slot: self.memory.places(slot, 0, s.granted) for slot, s in self.running.items()},
            list(pool.cached) if pool else [],
        )

    def wanted(self, length: int, limit: int) -> int:
        """Places that contiguous needs at least for a sequence; not with reserve max-len."""
        return length if self.reserve == "grow" else max(length, min(limit, self.kv.longest))

    def enough(self, length: int, limit: int) -> bool:
        """Whether contiguous can make room by joining holes."""
        return length <= self.kv.longest and self.kv.capacity - self.kv.usage().reserved >= self.wanted(length, limit)

    def surely_fits(self, length: int, limit: int) -> bool:
        usage = self.kv.usage()
        free = usage.capacity - usage.reserved - usage.wasted_outside
        if self.layout == "contiguous":
            if self.reserve == "max-len":
                return free >= min(MAX_MODEL_LEN, self.kv.capacity)
            return self.enough(length, limit) if self.compaction == "pause" else free >= self.wanted(length, limit)
        return free >= -(-length // self.unit) * self.unit


CONTIGUOUS = [
    ("contiguous", "max-len", "incremental"),
    *(("contiguous", reserve, compaction) for reserve in ("request", "grow") for compaction in ("pause", "incremental")),
]


@pytest.mark.parametrize(("layout", "reserve", "compaction"), [*CONTIGUOUS, ("paged", "", ""), ("hybrid", "", "")])
def test_a_layout_keeps_its_promises_under_random_use(layout: str, reserve: str, compaction: str) -> None:
    made = {"layout": layout, "reserve": reserve or "max-len", "compaction": compaction or "incremental"}
    machine = type("Machine", (LayoutMachine,), made)
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=checks)
    )
