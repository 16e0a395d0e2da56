"""Python's garbage collections: summed up for each step, and told one by one where they matter."""

from __future__ import annotations

import gc

from octavo.observe.garbage import GarbageWatch
from octavo.observe.read import read_record
from tests.fake_engine import fake_engine, request
from tests.observe.clock import ManualClock


def watched(clock: ManualClock) -> tuple[GarbageWatch, list[tuple[float, int, float, int]]]:
    seen: list[tuple[float, int, float, int]] = []
    watch = GarbageWatch(clock.now, lambda *one: seen.append(one))
    watch.start()
    return watch, seen


def collect(clock: ManualClock, generation: int, seconds: float) -> None:
    """A collection that takes so long."""

    def slow(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            clock.pass_(seconds)

    gc.callbacks.append(slow)
    try:
        gc.collect(generation)
    finally:
        gc.callbacks.remove(slow)


def test_long_collections_and_those_of_older_generations_are_told_one_by_one() -> None:
    gc.collect()
    gc.disable()
    clock = ManualClock(50.0)
    watch, seen = watched(clock)
    try:
        collect(clock, 0, 1e-6)
        collect(clock, 0, 0.5)
        collect(clock, 1, 1e-6)
        assert [(generation, round(seconds, 9)) for _, generation, seconds, _ in seen] == [(0, 0.5), (1, 1e-6)]
        assert seen[0][0] == 50.0 + 1e-6
        seconds, count = watch.take()
        assert (round(seconds, 9), count) == (0.500002, 3)
        assert watch.take() == (0.0, 0)
    finally:
        watch.close()
        gc.enable()


def test_a_watch_that_is_closed_or_gone_leaves_nothing_behind() -> None:
    before = list(gc.callbacks)
    watch, _ = watched(ManualClock())
    watch.close()
    assert gc.callbacks == before
    watch, _ = watched(ManualClock())
    del watch
    assert gc.callbacks == before


def test_a_collection_is_in_the_record_of_the_step_it_struck() -> None:
    core = fake_engine()
    core.add(request("a", [1, 2], max_tokens=2))
    core.step()
    gc.collect()
    core.step()
    found = read_record(core.window(steps=2))
    assert found.steps[1].gc_count >= 1
    assert found.steps[1].gc_s > 0
    assert any(one.generation == 2 for one in found.collections)
