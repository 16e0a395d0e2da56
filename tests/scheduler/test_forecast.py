"""How much memory a batch will need, beside a simulation of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.scheduler.forecast import peak_tokens


def simulated(sequences: list[tuple[int, int]]) -> int:
    held, peak = list(sequences), 0
    while held:
        peak = max(peak, sum(now for now, _ in held))
        held = [(now + 1, to_come - 1) for now, to_come in held if to_come > 0]
    return peak


def test_by_hand():
    assert peak_tokens([]) == 0
    assert peak_tokens([(10, 5)]) == 15
    assert peak_tokens([(10, 5), (100, 0)]) == 110  # now is the peak
    assert peak_tokens([(10, 50), (10, 50)]) == 120
    assert peak_tokens([(10, 50), (20, 10)]) == 60  # 20 + 30 while both run; 60 when the first ends


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_as_a_simulation_says(sequences):
    assert peak_tokens(sequences) == simulated(sequences)
