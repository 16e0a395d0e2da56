"""Sampling: the random stream, and how often each token is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.runner.launches import Launches
from octavo.runner.sampler import Sampler, uniform
from octavo.scheduler.plan import SlotSampling

MASK = 2**64 - 1


def splitmix_uniform(seed: int, drawn: int) -> float:
    """The documented formula in Python's integers."""

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    return (mix((mix(seed & MASK) + (drawn + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11) / 2**53


def sampler(*ways, drawn=0):
    """A sampler whose slot i samples as ``ways[i]`` says: (temperature, top_p, top_k, seed)."""
    made = Sampler(len(ways), Launches())
    made.open([SlotSampling(i, t, p, k, seed, drawn) for i, (t, p, k, seed) in enumerate(ways)])
    return made


def draws(logits, count, temperature=1.0, top_p=1.0, top_k=0):
    """``count`` independent draws from one row of logits: as many slots, each with its own seed."""
    made = sampler(*[(temperature, top_p, top_k, seed) for seed in range(count)])
    return made.sample(np.arange(count), torch.tensor(logits, dtype=torch.float32).repeat(count, 1))


def assert_distribution(found, probabilities):
    """Chi-square at the 99.9 % level: exact for fixed seeds, so it passes always or never."""
    probabilities = np.asarray(probabilities, np.float64)
    counts = np.bincount(found, minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * len(found)
    freedom = possible.sum() - 1
    if freedom == 0:
        return
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty's approximation
    assert ((counts[possible] - expected) ** 2 / expected).sum() < limit


@given(seed=st.integers(-(2**63), 2**63 - 1), drawn=st.integers(0, 2**40))
def test_the_random_stream_is_the_documented_one(seed, drawn):
    found = uniform(np.array([seed & MASK], np.uint64), np.array([drawn], np.uint64))[0]
    assert found == splitmix_uniform(seed, drawn)
    assert 0 <= found < 1


def test_the_random_stream_is_uniform_along_seeds_and_along_positions():
    some = np.arange(20000, dtype=np.uint64)
    for numbers in (uniform(some, np.zeros_like(some)), uniform(np.zeros_like(some), some), uniform(some, some)):
        assert_distribution((numbers * 50).astype(int), np.full(50, 1 / 50))


PROBABILITIES = [0.05, 0.4, 0.1, 0.25, 0.2]
LOGITS = list(np.log(PROBABILITIES) + 70)


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ({}, PROBABILITIES),
        ({"top_k": -1}, PROBABILITIES),
        ({"top_k": 2**31 - 1}, PROBABILITIES),
        ({"temperature": 0.5}, np.square(PROBABILITIES) / np.square(PROBABILITIES).sum()),
        ({"top_k": 2}, np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        ({"top_p": 0.64}, np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        ({"top_p": 0.66}, np.array([0, 0.4, 0, 0.25, 0.2]) / 0.85),
        ({"top_p": 0.3}, [0, 1, 0, 0, 0]),
        # 0.4 and 0.25 of the three that top_k keeps are 0.76 of their sum; without top_k they are not enough for 0.75.
        ({"top_k": 3, "top_p": 0.75}, np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        ({"temperature": 1e-37}, [0, 1, 0, 0, 0]),
    ],
)
def test_draws_follow_the_truncated_distribution(ways, expected):
    assert_distribution(draws(LOGITS, 4000, **ways), expected)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.6), (0, 0.999), (700, 1.0), (700, 0.5)])
def test_truncation_of_a_large_vocabulary(top_k, top_p):
    """Flat enough that top_p keeps hundreds or thousands of tokens."""
    logits = np.random.default_rng(1).normal(0, 1, 5000).astype(np.float32).astype(np.float64)
    order = np.argsort(-logits)
    kept = order[:top_k] if top_k else order
    weights = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    kept = set(kept[: int(np.searchsorted(np.cumsum(weights), top_p)) + 1].tolist())
    found = draws(logits, 3000, top_k=top_k, top_p=top_p)
    assert set(found.tolist()) <= kept
    # Tenths of the kept mass, cut in order of id, are all as likely.
    ids = np.array(sorted(kept))
    mass = np.cumsum(np.exp(logits[ids]))
    tenth = np.searchsorted(np.linspace(0, mass[-1], 11)[1:-1], mass - np.exp(logits[ids]) / 2)
    expected = np.bincount(tenth, weights=np.exp(logits[ids]) / mass[-1], minlength=10)
    assert_distribution(tenth[np.searchsorted(ids, found)], expected)


def test_equal_tokens_are_kept_or_dropped_together():
    logits = [1.0, 3.0, 3.0, 3.0, 0.0]
    assert_distribution(draws(logits, 2000, top_k=2), np.array([0, 1, 1, 1, 0]) / 3)
    assert_distribution(draws(logits, 2000, top_p=0.4), np.array([0, 1, 1, 1, 0]) / 3)


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1 - 2**-53, 3), (0.5 - 2**-40, 1), (0.5, 3)])
def test_only_tokens_with_a_probability_are_drawn(monkeypatch, number, token):
    """The ends of the range, and the border between two tokens that are equally likely."""
    monkeypatch.setattr("octavo.runner.sampler.uniform", lambda seeds, drawn: np.full(len(seeds), number))
    logits = torch.tensor([[-np.inf, 2.0, -np.inf, 2.0, -np.inf]])
    assert sampler((1.0, 1.0, 0, 1)).sample(np.array([0]), logits).tolist() == [token]


def test_greedy_takes_the_first_of_the_most_likely():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [9.0, 8.0, 7.0, 6.0]])
    for way in ((0.0, 1.0, 0, 1), (0.7, 1.0, 1, 1)):
        assert sampler(way, way).sample(np.arange(2), logits).tolist() == [1, 0]


def test_a_draw_depends_on_its_own_seed_and_position_only():
    """A slot of seed 7 draws the same tokens alone, among others of all kinds, and continued after a preemption elsewhere."""
    random = np.random.default_rng(3)
    steps = [torch.from_numpy(random.normal(0, 1, (5, 300)).astype(np.float32)) for _ in range(12)]
    way = (0.8, 0.9, 40, 7)
    alone = sampler(way)
    want = [alone.sample(np.arange(1), step[:1])[0] for step in steps]
    assert len(set(want)) > 5
    others = sampler((0.0, 1.0, 0, 7), (1.0, 0.5, 0, 7), way, (1.0, 1.0, 3, 8), (2.0, 1.0, 0, 9))
    for step, token in zip(steps[:6], want[:6], strict=True):
        assert others.sample(np.array([4, 2, 0, 1, 3]), step[[4, 0, 1, 2, 3]])[1] == token
    moved = sampler((1.0, 1.0, 0, 1), way, drawn=6)
    for step, token in zip(steps[6:], want[6:], strict=True):
        assert moved.sample(np.array([1]), step[:1])[0] == token
        assert moved.last[1] == token


ANY_FLOAT = st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False)


@given(
    logits=st.lists(st.one_of(ANY_FLOAT, st.sampled_from([-np.inf, np.nan])), min_size=2, max_size=20),
    temperature=st.floats(1e-6, 1e6),
    top_p=st.floats(1e-6, 1.0),
    top_k=st.integers(-1, 25),
)
def test_whatever_the_logits_a_token_of_the_vocabulary_comes_out(logits, temperature, top_p, top_k):
    made = sampler((temperature, top_p, top_k, 5), (0.0, 1.0, 0, 0))
    rows = torch.tensor([logits, logits], dtype=torch.float32)
    tokens = made.sample(np.arange(2), rows)
    assert ((tokens >= 0) & (tokens < len(logits))).all()
    if np.isfinite(np.max(logits)):
        assert np.isfinite(logits[tokens[0]])  # a token of probability 0 is never drawn
