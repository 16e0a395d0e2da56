"""KeptRuns beside plain ranges."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.kept import KeptRuns
from octavo.kv.runs import Run

UNIT = 2


@settings(deadline=None, max_examples=150)
@given(
    layout=st.lists(st.tuples(st.integers(0, 3), st.integers(2, 9)), max_size=8),
    order=st.randoms(use_true_random=False),
    length=st.integers(1, 20),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10)), max_size=4),
)
def test_what_a_place_would_overwrite_and_what_is_left_then(
    layout: list[tuple[int, int]], order: random.Random, length: int, cuts: list[tuple[int, int]]
) -> None:
    lost: list[tuple[int, int]] = []
    kept = KeptRuns(UNIT, lambda run, units: lost.extend((run.serial, unit) for unit in units))
    expected: dict[int, tuple[int, int]] = {}  # serial to start and tokens
    runs, at = [], 0
    for serial, (gap, filled) in enumerate(layout):
        runs.append(Run(serial, -1, at + gap, filled, filled, filled, filled, range(filled // UNIT)))
        at += gap + filled
    order.shuffle(runs)
    for run in runs:
        kept.add(run)
        expected[run.serial] = (run.start, run.filled)
    used = {run.serial: run.used for run in runs}

    def latest(place: int) -> int:
        hit = [used[s] for s, (start, filled) in expected.items() if start < place + length and place < start + filled]
        return max(hit, default=0)

    assert list(kept.newest(range(at + 3), length)) == [(latest(place), place) for place in range(at + 3)]
    for start, size in cuts:
        gone = kept.evict(start, start + size)
        before, lost_now = dict(expected), set()
        for serial, (begin, filled) in before.items():
            if begin < start + size and start < begin + filled:
                left = max(0, start - begin)
                lost_now |= {(serial, unit) for unit in range(left // UNIT, filled // UNIT)}
                expected[serial] = (begin, left)
                if left < UNIT:
                    del expected[serial]
        assert set(lost) == lost_now
        assert gone == len(lost_now)
        lost.clear()
        assert {run.serial: (run.start, run.filled) for run in kept} == expected
        assert kept.tokens == sum(filled for _, filled in expected.values())
        assert [run.start for run in kept] == sorted(start for start, _ in expected.values())
