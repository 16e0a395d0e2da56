"""The virtual layout, driven at random over real pages beside a plain model of what it promises, and beside the same layout
without memory: every sequence reads back its own tokens, nobody writes what another reads, refused calls change nothing, the
books balance, no more memory is in use than there may be, and a simulation decides as the real thing does."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from octavo.kv.arena import KVSpec, UnbackedArena
from octavo.kv.cache import KVCache
from octavo.kv.virtual import Virtual
from tests.kv.memory import NOTHING, PLAN, Memory, cache, contents

SLOTS, MAX_MODEL_LEN = 5, 40
# Bytes of a token: 8 tokens fill 3 pages; 4 fill one; one fills 2; no fewer than 64 fill 3, more than the longest sequence has.
SPECS = [KVSpec(1, 1, dim, "float32") for dim in (384, 256, 2048, 48)]
picks = st.integers(0, 1000)


@dataclass
class Running:
    """A sequence as its owner knows it."""

    tokens: list[int]
    limit: int
    computed: int
    granted: int  # positions below this were promised
    whole: bool = False


class VirtualMachine(RuleBasedStateMachine):
    @initialize(
        spec=st.sampled_from(SPECS),
        capacity=st.integers(2 * MAX_MODEL_LEN, 4 * MAX_MODEL_LEN),
        prefix_caching=st.booleans(),
        segments=st.sampled_from([0, 1, 3, 1000]),
    )
    def start(self, spec: KVSpec, capacity: int, prefix_caching: bool, segments: int) -> None:
        how = {
            "spec": spec, "capacity": capacity, "slots": SLOTS, "max_model_len": MAX_MODEL_LEN,
            "prefix_caching": prefix_caching and spec.head_dim != 48,
        }  # fmt: skip
        self.kv, self.twin = cache("virtual", **how), cache("virtual", make_arena=UnbackedArena, **how)
        for kv in (self.kv, self.twin):
            layout(kv).pages.areas = segments * layout(kv).shape.tensors
        self.unit = layout(self.kv).unit
        self.memory = Memory(self.kv)
        self.running: dict[int, Running] = {}
        self.past: list[list[int]] = [[]]
        self.known: set[tuple[int, ...]] = set()  # prefixes of whole units that were ever computed

    # ---- what a scheduler does

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(stem=picks, cut=picks, tail=st.lists(st.integers(0, 2), max_size=6), more=st.integers(0, 20), whole=st.booleans())
    def admit(self, stem: int, cut: int, tail: list[int], more: int, whole: bool) -> None:
        old = self.past[stem % len(self.past)]
        tokens = (old[: cut % (len(old) + 1)] + tail or [0])[:MAX_MODEL_LEN]
        limit = min(len(tokens) + more, self.kv.longest)
        length = max(limit, len(tokens)) if whole else len(tokens)
        slot = self.free_slot(cut)
        before, fits = self.books(), self.free_rows() >= layout(self.kv).shape.rows(length) and length <= self.kv.longest
        how = {"expected": limit, "limit": limit, "whole": whole}
        reused = self.kv.admit(slot, tokens, **how)
        assert self.twin.admit(slot, tokens, **how) == reused
        if reused is None:
            assert self.books() == before
            assert not fits
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
        extended = self.kv.extend(slot, length)
        assert self.twin.extend(slot, length) == extended
        if extended:
            s.tokens.append(token)
            s.granted = max(s.granted, length)
        else:
            assert self.books() == before
            assert s.granted < length
            assert self.free_rows() < layout(self.kv).shape.rows(length) - layout(self.kv).shape.rows(length - 1)

    @precondition(lambda self: self.running)
    @rule(which=st.sets(st.integers(0, SLOTS - 1)), length=st.integers(1, 12))
    def step(self, which: set[int], length: int) -> None:
        self.memory.prepare()
        self.twin.view(PLAN).prepare()
        for slot in which & set(self.running):
            s = self.running[slot]
            end = min(s.computed + length, len(s.tokens), s.granted)
            if end > s.computed:
                self.memory.write(slot, s.computed, s.tokens, end)
                self.twin.computed(slot, end)
                s.computed = end
                self.know(s)
        for slot, s in self.running.items():
            assert self.memory.read(slot, s.computed) == contents(s.tokens[: s.computed])

    @precondition(lambda self: 0 < len(self.running) < SLOTS)
    @rule(pick=picks, cut=picks, tail=st.lists(st.integers(0, 2), max_size=3))
    def fork(self, pick: int, cut: int, tail: list[int]) -> None:
        parent = self.pick(pick)
        p = self.running[parent]
        child = self.free_slot(cut)
        tokens = p.tokens[: cut % (p.computed + 1)] if cut % 3 else p.tokens[: p.computed]
        shared = len(tokens)
        if shared == p.computed:  # anything may follow what the parent has computed
            tokens = (tokens + tail)[: p.limit]
        before = self.books()
        forked = self.kv.fork(parent, child, tokens)
        assert self.twin.fork(parent, child, tokens) == forked
        if forked:
            self.running[child] = Running(tokens, p.limit, shared, len(tokens))
        else:
            assert self.books() == before

    @precondition(lambda self: self.running)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        slot = self.pick(pick)
        self.kv.release(slot)
        self.twin.release(slot)
        del self.running[slot]

    @rule()
    def reset_prefix(self) -> None:
        self.kv.reset_prefix()
        self.twin.reset_prefix()
        self.known.clear()
        for s in self.running.values():  # what they compute later is still offered, and leads on from what was forgotten
            self.know(s)

    @precondition(lambda self: self.running)
    @rule()
    def scribble(self) -> None:
        """What is promised to a sequence and not computed yet holds anything."""
        if layout(self.kv)._copies or layout(self.kv)._dirty or layout(self.kv).regions.changed:
            return
        for slot, s in self.running.items():
            self.memory.cells[:, self.memory.places(slot, s.computed, s.granted)] = NOTHING

    # ---- what must hold

    @invariant()
    def balance(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check()  # physical memory included
        self.twin.check()
        usage = self.kv.usage()
        assert usage == self.twin.usage()
        assert self.kv.prefix_stats == self.twin.prefix_stats
        places = [set(self.physical(slot, 0, s.computed)) for slot, s in self.running.items()]
        assert usage.used == len(set().union(*places))
        assert usage.shared == sum(map(len, places)) - usage.used
        assert usage.used + usage.wasted_inside == usage.reserved
        assert usage.reserved + usage.wasted_outside <= usage.capacity
        assert min(usage.wasted_inside, usage.wasted_outside, usage.shared, usage.cached) >= 0
        if not self.running:
            assert (usage.reserved, usage.used, usage.shared, usage.fraction) == (0, 0, 0, 0.0)

    @invariant()
    def nobody_writes_where_another_reads(self) -> None:
        if not hasattr(self, "kv"):
            return
        places = {slot: self.physical(slot, 0, s.granted) for slot, s in self.running.items()}
        for slot, own in places.items():
            writable = set(own[self.running[slot].computed :])
            for other, theirs in places.items():
                assert other == slot or writable.isdisjoint(theirs)

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            for slot in list(self.running):
                self.release(slot)
            self.balance()

    # ---- helpers

    def physical(self, slot: int, start: int, end: int) -> list[tuple[int, int]]:
        """Region and place of positions start .. end - 1."""
        segments, unit = layout(self.kv)._slots[slot].wanted, self.unit
        return [
            (next(region for first, last, region in segments if first <= position // unit < last), position)
            for position in range(start, end)
        ]

    def know(self, s: Running) -> None:
        self.known |= {tuple(s.tokens[:n]) for n in range(self.unit, s.computed + 1, self.unit)}

    def pick(self, number: int) -> int:
        return sorted(self.running)[number % len(self.running)]

    def free_slot(self, number: int) -> int:
        free = sorted(set(range(SLOTS)) - set(self.running))
        return free[number % len(free)]

    def free_rows(self) -> int:
        regions = layout(self.kv).regions
        return regions.capacity - regions.held

    def books(self) -> tuple[object, ...]:
        """All that a refused call could have changed."""
        kv = self.kv
        where = {slot: self.physical(slot, 0, s.granted) for slot, s in self.running.items()}
        return kv.usage(), copy.copy(kv.prefix_stats), where, list(layout(kv).regions.cached)


def layout(kv: KVCache) -> Virtual:
    assert isinstance(kv.layout, Virtual)
    return kv.layout


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def test_the_virtual_layout_keeps_its_promises_under_random_use() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        VirtualMachine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS)
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_long_life_under_pressure(seed: int) -> None:
    """More traffic than hypothesis makes, on few slots and little memory: regions are used again and again."""
    rng = random.Random(seed)
    machine = VirtualMachine()
    machine.start(SPECS[seed % 3], rng.randint(MAX_MODEL_LEN, 3 * MAX_MODEL_LEN), True, rng.choice([1, 1000]))
    for _ in range(400):
        free, busy = len(machine.running) < SLOTS, bool(machine.running)
        do = rng.choices(["admit", "extend", "step", "fork", "release"], [4, 6, 6, 1, 3])[0]
        number = rng.randrange(1000)
        if do == "admit" and free:
            machine.admit(
                number, rng.randrange(1000), rng.choices(range(3), k=rng.randrange(6)), rng.randrange(20), not number % 5
            )
        elif do == "fork" and free and busy:
            machine.fork(number, rng.randrange(1000), [1] * rng.randrange(3))
        elif do == "extend" and busy:
            machine.extend(number, rng.randrange(3))
        elif do == "step" and busy:
            machine.step(set(range(SLOTS)), rng.randint(1, 12))
        elif do == "release" and busy:
            machine.release(number)
        machine.past = machine.past[-30:]
        machine.balance()
        machine.nobody_writes_where_another_reads()
    machine.teardown()
