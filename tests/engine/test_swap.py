"""Preemption by swap: what was computed is copied out and back, and is not computed again."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from octavo.errors import IntegrityError
from octavo.observe.read import read_record
from octavo.scheduler.preemption import Preemption
from tests.fake_engine import VOCAB, fake_engine, request, run
from tests.fake_runner import continuation

PROMPTS = {name: [i + 1] * 30 for i, name in enumerate("abcd")}
OUTPUT = 50


def engine(**settings: object) -> EngineCore:
    """Four sequences want 4 x 80 tokens; there are 160."""
    core = fake_engine(capacity=160, block_size=8, slots=4, max_model_len=160, **settings)  # type: ignore[arg-type]
    for name, prompt in PROMPTS.items():
        core.add(request(name, prompt, max_tokens=OUTPUT))
    return core


def check_tokens(core: EngineCore) -> None:
    assert run(core) == {name: continuation(prompt, OUTPUT, VOCAB) for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(("layout", "reserve"), [("paged", "max-len"), ("hybrid", "max-len"), ("contiguous", "grow")])
def test_nothing_is_computed_twice(layout: str, reserve: str, overlapped: bool) -> None:
    core = engine(layout=layout, reserve=reserve, threshold=64, swap_tokens=320, preemption="swap", overlapped=overlapped)
    check_tokens(core)
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.swapped_out == stats.swapped_in > 0
    assert stats.prompt_tokens <= sum(map(len, PROMPTS.values())) + stats.preemptions  # the last token of each is computed anew
    assert core.scheduler.recomputed_tokens == 0


def test_where_there_is_no_room_it_is_computed_again() -> None:
    core = engine(swap_tokens=64, preemption="swap")
    check_tokens(core)
    assert core.stats().swapped_out > 0
    assert core.scheduler.recomputed_tokens > 0


def test_the_record_has_it() -> None:
    core = engine(swap_tokens=320, preemption="swap")
    check_tokens(core)
    steps = read_record(core.window(steps=1000)).steps
    stats = core.stats()
    assert sum(step.swapped_out_tokens for step in steps) == stats.swapped_out
    assert sum(step.swapped_in_tokens for step in steps) == stats.swapped_in
    assert sum(step.moved_tokens for step in steps) == stats.swapped_out + stats.swapped_in


def test_who_leaves_while_swapped_out_leaves_nothing() -> None:
    core = engine(swap_tokens=320, preemption="swap")
    while not core.stats().swapped_out:
        core.step()
    core.abort(list(PROMPTS))
    core.check()
    assert not core.has_work


def test_what_is_lost_is_found_by_the_check() -> None:
    core = engine(swap_tokens=320, preemption="swap")
    check_tokens(core)
    assert core.kv.swap is not None
    core.kv.swap.take(16)
    with pytest.raises(IntegrityError, match="16 tokens of swap space are held"):
        core.check()


def test_auto_takes_the_cheaper() -> None:
    auto = Preemption("auto", copied_s=1000.0)
    assert auto.swaps, "nothing is known of prefill yet"
    auto.observe(prefill_tokens=100, tokens=100, seconds=0.1)  # 1000 tokens a second: copying twice takes twice as long
    assert not auto.swaps
    for _ in range(20):
        auto.observe(prefill_tokens=100, tokens=100, seconds=1.0)
    assert auto.swaps
    for _ in range(100):
        auto.observe(prefill_tokens=1, tokens=64, seconds=0.001)  # decoding says nothing of it
    assert auto.swaps
    assert not Preemption("recompute").swaps
    assert Preemption("swap").swaps


def test_looking_ahead_avoids_preemption() -> None:
    core = engine(look_ahead=True)
    check_tokens(core)
    assert core.stats().preemptions == 0


def test_what_requests_came_to_decides_how_many_are_admitted() -> None:
    """They ask for 100 tokens and end after few: once that is known, more of them run at once."""
    stop = continuation([1] * 10, 5, VOCAB)[4]
    core = fake_engine(capacity=256, block_size=8, slots=8, max_model_len=128, look_ahead=True)
    most = []
    for round in range(2):
        for i in range(8):
            core.add(request(f"{round}{i}", [1] * 10, max_tokens=100, stop_token_ids=[stop]))
        running = 0
        while core.has_work:
            core.step()
            running = max(running, len(core.scheduler.running))
        most.append(running)
    assert most[0] < 8
    assert most[1] == 8
