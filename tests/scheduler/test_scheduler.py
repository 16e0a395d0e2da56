"""What the scheduler promises: order, mixing, admission, preemption, abort, refusal."""

from __future__ import annotations

import pytest

from octavo.errors import RequestError
from octavo.request import TokenUpdate
from tests.fake_engine import VOCAB, fake_engine, request, run
from tests.fake_runner import continuation


def finished_in_order(core) -> list[str]:  # type: ignore[no-untyped-def]
    order = []
    while core.has_work:
        order += [u.id for u in core.step().updates if u.finish]
    return order


def test_first_come_first_served_and_lower_priority_numbers_before_that() -> None:
    core = fake_engine(slots=1)
    for name, priority in [("a", 1), ("b", 0), ("c", 0), ("d", -1)]:
        core.add(request(name, [1, 2, 3], priority=priority))
    assert finished_in_order(core) == ["d", "b", "c", "a"]


def test_prefill_chunks_share_a_step_with_decoding() -> None:
    core = fake_engine(slots=4, batch_tokens=16)
    core.add(request("short", [1, 2, 3], max_tokens=20))
    core.step()
    core.add(request("long", list(range(40)), max_tokens=2))
    core.step()
    core.step()
    mixed = core.runner.plans[1:3]
    assert [(row.length, row.start, row.tokens is None) for row in mixed[0].rows] == [(1, 3, True), (15, 0, False)]
    assert [(row.length, row.start, row.tokens is None) for row in mixed[1].rows] == [(1, 4, True), (15, 15, False)]
    assert all(plan.tokens <= 16 for plan in core.runner.plans)


def test_a_prompt_is_admitted_only_whole_and_nobody_overtakes_it() -> None:
    core = fake_engine(slots=4, capacity=160, max_model_len=160, batch_tokens=200)
    core.add(request("first", [1] * 100, max_tokens=3))
    core.add(request("large", [2] * 100, max_tokens=3))
    core.add(request("small", [3], max_tokens=3))
    core.step()
    assert [row.length for row in core.runner.plans[0].rows] == [100]
    assert finished_in_order(core) == ["first", "large", "small"]


def test_the_last_in_rank_is_preempted_and_comes_back_with_the_same_tokens() -> None:
    core = fake_engine(slots=2, capacity=64, max_model_len=64, block_size=16)
    core.add(request("old", [1] * 30, max_tokens=30))
    core.add(request("young", [2] * 30, max_tokens=30))
    got = run(core)
    assert core.stats().preemptions == 1
    assert got == {"old": continuation([1] * 30, 30, VOCAB), "young": continuation([2] * 30, 30, VOCAB)}


def test_the_urgent_one_is_kept_even_when_it_came_last() -> None:
    core = fake_engine(slots=2, capacity=64, max_model_len=64, block_size=16)
    core.add(request("patient", [1] * 30, max_tokens=30, priority=1))
    core.add(request("urgent", [2] * 30, max_tokens=30, priority=0))
    assert finished_in_order(core) == ["urgent", "patient"]
    assert core.stats().preemptions == 1


@pytest.mark.parametrize("cap", [0, 1, 3])
def test_no_request_is_preempted_more_often_than_the_cap(cap: int) -> None:
    core = fake_engine(slots=8, capacity=160, max_model_len=96, block_size=8, max_preemptions=cap, batch_tokens=256)
    for i in range(8):
        core.add(request(f"r{i}", [i + 1] * 10, max_tokens=80))
    worst = 0
    while core.has_work:
        core.step()
        worst = max([worst, *(s.preemptions for s in core.scheduler.running)])
    assert worst <= cap
    assert core.stats().preemptions <= 8 * cap
    assert (cap == 0) == (core.stats().preemptions == 0)


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    core = fake_engine(max_model_len=64)
    with pytest.raises(RequestError, match=r"60 prompt tokens and max_tokens 5 make 65 tokens.*at most 64") as caught:
        core.add(request("a", [1] * 60, max_tokens=5))
    assert caught.value.param == "max_tokens"
    with pytest.raises(RequestError, match=r"64 prompt tokens and at least 1 new token make 65"):
        core.add(request("a", [1] * 64, max_tokens=None))
    with pytest.raises(RequestError, match="empty"):
        core.add(request("a", []))
    with pytest.raises(RequestError, match=f"outside 0..{VOCAB - 1}"):
        core.add(request("a", [VOCAB]))
    assert not core.has_work
    core.add(request("a", [1]))
    with pytest.raises(RequestError, match="in use"):
        core.add(request("a", [1]))


def test_an_end_token_ends_unless_it_is_ignored_and_stop_tokens_say_which() -> None:
    prompt = [5, 6, 7]
    tokens = continuation(prompt, 10, VOCAB)
    end = tokens[3]
    core = fake_engine(eos=(end,))
    core.add(request("eos", prompt, max_tokens=10))
    core.add(request("ignored", prompt, max_tokens=10, ignore_eos=True))
    core.add(request("stop", prompt, max_tokens=10, ignore_eos=True, stop_token_ids=[tokens[5], 3]))
    last: dict[str, TokenUpdate] = {}
    got: dict[str, list[int]] = {"eos": [], "ignored": [], "stop": []}
    while core.has_work:
        for update in core.step().updates:
            got[update.id] += update.tokens
            last[update.id] = update
    first = tokens.index(end) + 1
    assert (got["eos"], last["eos"].finish, last["eos"].stop_token) == (tokens[:first], "stop", None)
    assert (got["ignored"], last["ignored"].finish) == (tokens, "length")
    assert (got["stop"], last["stop"].finish, last["stop"].stop_token) == (tokens[:6], "stop", tokens[5])


def test_abort_frees_at_once_whether_waiting_prefilling_or_decoding() -> None:
    core = fake_engine(slots=2, batch_tokens=16, capacity=256)
    core.add(request("decoding", [1, 2], max_tokens=50))
    core.add(request("prefilling", [3] * 60, max_tokens=50))
    core.add(request("waiting", [4], max_tokens=50))
    core.step()
    core.step()
    assert (core.stats().running, core.stats().waiting) == (2, 1)
    assert {u.id for u in core.abort(["prefilling", "waiting", "decoding", "unknown"])} == {"decoding", "prefilling", "waiting"}
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.kv_reserved, core.has_work) == (0, 0, 0, False)
    core.check()


def test_unset_max_tokens_runs_to_the_end_of_the_context() -> None:
    core = fake_engine(max_model_len=48)
    core.add(request("a", [1] * 40, max_tokens=None))
    assert len(run(core)["a"]) == 8


def test_a_seed_of_its_own_is_kept_and_others_get_different_ones() -> None:
    core = fake_engine()
    core.add(request("a", [1], seed=7))
    core.add(request("b", [1]))
    core.add(request("c", [1]))
    core.step()
    seeds = [slot.seed for slot in core.runner.plans[0].opened]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


def test_a_stop_token_is_named_even_where_it_is_an_ignored_end() -> None:
    prompt = [5, 6, 7]
    end = continuation(prompt, 1, VOCAB)[0]
    core = fake_engine(eos=(end,))
    core.add(request("a", prompt, ignore_eos=True, stop_token_ids=[end]))
    (update,) = core.step().updates
    assert (update.finish, update.stop_token) == ("stop", end)
