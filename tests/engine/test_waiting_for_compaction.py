"""A request that fits only once holes are joined: it waits, it is served, and it does not stop others when it goes away."""

from __future__ import annotations

import pytest

from octavo.engine.core import EngineCore
from tests.fake_engine import VOCAB, fake_engine, request, run
from tests.fake_runner import continuation

TOKEN = 8  # bytes of keys and values


def engine(reserve: str, tokens: int) -> EngineCore:
    return fake_engine(
        layout="contiguous", reserve=reserve, compaction_slice=tokens * TOKEN, capacity=256, slots=16, prefix_caching=True
    )


def fragmented(core: EngineCore) -> list[str]:
    """Requests of 32 places each fill the memory; every other one ends at once. Returns the others, which go on for a while."""
    for i in range(8):
        core.add(request(f"r{i}", [i] * 12, max_tokens=20, ignore_eos=True))
    core.step()
    core.abort([f"r{i}" for i in (0, 2, 4, 6)])
    return [f"r{i}" for i in (1, 3, 5, 7)]


@pytest.mark.parametrize("tokens", [1, 5, 100])
def test_smaller_requests_that_come_later_do_not_take_the_hole(tokens: int) -> None:
    core = engine("request", tokens)
    fragmented(core)
    core.add(request("long", [9] * 40, max_tokens=60))
    asked, steps, first = {}, 0, {}
    got: dict[str, list[int]] = {}
    while core.has_work:
        steps += 1
        if steps < 120:  # they would fit into any hole
            name = f"s{steps}"
            asked[name] = [steps % VOCAB] * 3
            core.add(request(name, asked[name], max_tokens=4))
        for update in core.step().updates:
            first.setdefault(update.id, steps)
            got.setdefault(update.id, []).extend(update.tokens)
        core.check()
    assert got["long"] == continuation([9] * 40, 60, VOCAB)
    assert all(got[name] == continuation(prompt, 4, VOCAB) for name, prompt in asked.items())
    # At the latest when the others have come to their ends; and before whoever came after it.
    assert first["long"] <= min(first[name] for name in asked)
    assert first["long"] <= (22 if tokens == 1 else 15)


@pytest.mark.parametrize("reserve", ["request", "grow"])
def test_whoever_waits_for_a_hole_may_go_away(reserve: str) -> None:
    core = engine(reserve, 1)
    left = fragmented(core)
    core.add(request("long", [9] * 100, max_tokens=20))
    core.step()
    core.step()
    core.check()
    core.abort(["long"])
    core.add(request("short", [5] * 3, max_tokens=4))
    got = run(core)
    assert got["short"] == continuation([5] * 3, 4, VOCAB)
    for name in left:
        full = continuation([int(name[1:])] * 12, 20, VOCAB)
        assert got[name] == full[len(full) - len(got[name]) :]


def test_requests_of_higher_priority_go_first_and_the_hole_comes_all_the_same() -> None:
    core = engine("request", 2)
    fragmented(core)
    core.add(request("long", [9] * 40, max_tokens=60, priority=1))
    for i in range(30):
        core.add(request(f"s{i}", [i + 20] * 3, max_tokens=9, priority=0))
        for _ in core.step().updates:
            pass
        core.check()
    got = run(core)
    assert got["long"] == continuation([9] * 40, 60, VOCAB)
