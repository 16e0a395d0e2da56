"""The same tokens whatever the layout, block size, chunks, batch mates, preemption and prefix cache: on the fake runner,
whose next token depends on every cell of the context, so that this covers placement and scheduling exhaustively."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_engine import VOCAB, fake_engine, request, run
from tests.fake_runner import continuation

LAYOUTS = [
    *(("contiguous", f"{reserve} {how}") for reserve in ("request", "grow") for how in ("pause", "incremental")),
    ("contiguous", "max-len"), ("paged", ""), ("hybrid", ""), ("virtual", ""),
]  # fmt: skip


def reserving(text: str) -> dict[str, str]:
    """The settings of contiguous as in LAYOUTS."""
    return dict(zip(("reserve", "compaction"), text.split(), strict=False))


def swappable(layout: str, reserve: str) -> bool:
    return layout in ("paged", "hybrid") or reserve.startswith("grow")


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of 1..90 tokens, every third one beginning as the first does."""
    rng = random.Random(seed)
    made = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 90))] for _ in range(count)]
    stem = [rng.randrange(VOCAB) for _ in range(80)]
    return [stem[: rng.randint(20, 80)] + p[:9] if i % 3 == 0 else p for i, p in enumerate(made)]


@pytest.mark.parametrize(("layout", "reserve"), LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 8, 16, 64, 256])
@pytest.mark.parametrize("chunk", [32, 7, 512])
@pytest.mark.parametrize("batch", [1, 32])
def test_every_combination_gives_the_oracles_tokens(layout: str, reserve: str, block_size: int, chunk: int, batch: int) -> None:
    if layout in ("contiguous", "virtual") and block_size != 16:
        pytest.skip(f"{layout} has no blocks")
    slots = min(batch, chunk)
    for prefix_caching, capacity in itertools.product([False, True], [256, 768, 16384]):
        swaps = swappable(layout, reserve) and capacity == 256
        core = fake_engine(
            layout=layout, **reserving(reserve), block_size=block_size, capacity=capacity, slots=slots,
            batch_tokens=chunk, prefix_caching=prefix_caching, overlapped=(capacity == 768) != prefix_caching,
            swap_tokens=200 * swaps, preemption="swap" if swaps else "recompute",
        )  # fmt: skip
        asked = {f"r{i}": p for i, p in enumerate(prompts(max(4, batch), seed=batch))}
        for name, prompt in asked.items():
            core.add(request(name, prompt, max_tokens=40))
        got = run(core)
        assert got == {name: continuation(prompt, 40, VOCAB) for name, prompt in asked.items()}
        stats = core.stats()
        assert (stats.kv_usage, stats.kv_reserved, stats.running, stats.waiting) == (0.0, 0, 0, 0)
        if layout in ("paged", "virtual") and capacity == 768 and batch == 32 and block_size <= 64 and slots == 32:
            assert stats.preemptions > 0, "the KV memory was meant to be too small"
        if prefix_caching and capacity == 16384 and block_size <= 16:
            assert stats.prefix_hits > 0, "prompts share a beginning"


@settings(max_examples=150, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    block_size=st.sampled_from([1, 2, 4, 16, 32]),
    blocks=st.integers(0, 24),
    slots=st.integers(1, 12),
    extra=st.integers(0, 40),
    threshold=st.sampled_from([8, 40, 128]),
    cap=st.integers(0, 3),
    prefix_caching=st.booleans(),
    overlapped=st.booleans(),
    swap=st.sampled_from([0, 48, 400]),
    look_ahead=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_random_load_with_aborts_leaves_nothing_behind(
    layout: tuple[str, str],
    block_size: int,
    blocks: int,
    slots: int,
    extra: int,
    threshold: int,
    cap: int,
    prefix_caching: bool,
    overlapped: bool,
    swap: int,
    look_ahead: bool,
    seed: int,
) -> None:
    rng = random.Random(seed)
    contiguous = layout[0] == "contiguous"
    core = fake_engine(
        layout=layout[0], **reserving(layout[1]), block_size=16 if contiguous else block_size,
        capacity=128 + 8 * blocks if contiguous else 128 + blocks * block_size, slots=slots, batch_tokens=slots + extra,
        max_model_len=128, threshold=threshold, max_preemptions=cap, prefix_caching=prefix_caching, overlapped=overlapped,
        swap_tokens=swap if swappable(*layout) else 0, preemption="swap" if swap and swappable(*layout) else "recompute",
        look_ahead=look_ahead,
    )  # fmt: skip
    stem = [rng.randrange(VOCAB) for _ in range(64)]
    live: dict[str, tuple[list[int], int | None]] = {}
    got: dict[str, list[int]] = {}
    for i in range(rng.randint(5, 30)):
        prompt = stem[: rng.choice([0, 16, 33, 64])] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))]
        limit = rng.choice([1, 5, 30, None])
        core.add(request(f"r{i}", prompt, max_tokens=limit, priority=rng.choice([0, 0, 1])))
        live[f"r{i}"], got[f"r{i}"] = (prompt, limit), []
        for _ in range(rng.randint(0, 4)):
            step(core, live, got)
        if live and rng.random() < 0.3:
            name = rng.choice(list(live))
            (update,) = core.abort([name])
            assert (update.id, update.finish) == (name, "abort")
            assert core.abort([name]) == []
            del live[name]
            core.check()
    while core.has_work:
        step(core, live, got)
    assert not live
    assert core.stats().kv_reserved == 0
    core.check()


def step(core, live, got) -> None:  # type: ignore[no-untyped-def]
    """One step; every token that comes is the oracle's."""
    if not core.has_work:
        return
    for update in core.step().updates:
        prompt, limit = live[update.id]
        got[update.id] += update.tokens
        assert got[update.id] == continuation(prompt, len(got[update.id]), VOCAB)
        if update.finish:
            assert len(got[update.id]) == (128 - len(prompt) if limit is None else limit)
            del live[update.id]
    core.check()
