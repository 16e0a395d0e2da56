"""Native sampling: the same draws as runner/sampler.py's, for the same logits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from octavo.native import isa
from octavo.native.library import CSampling, load
from octavo.runner.launches import Launches
from octavo.runner.sampler import Sampler
from octavo.scheduler.plan import SlotSampling

pytestmark = pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
WAYS = [
    (0.0, 1.0, 0),
    *[(t, 1.0, 0) for t in (0.01, 0.3, 1.0, 3.0)],
    *[(1.0, 1.0, k) for k in (1, 2, 40, 500, 10**6)],
    *[(1.0, p, 0) for p in (0.05, 0.5, 0.9, 0.999)],
    *[(0.7, 0.9, 50), (1.5, 0.6, 3)],
]


def native(logits, temperature, top_p, top_k, seed, drawn):
    sampling = CSampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, drawn=drawn)
    return load().draw(logits.ctypes.data, len(logits), ctypes.byref(sampling))


def defined(logits, temperature, top_p, top_k, seed, drawn):
    sampler = Sampler(1, Launches())
    sampler.open([SlotSampling(0, temperature, top_p, top_k, seed, drawn)])
    return int(sampler.sample(np.array([0]), torch.from_numpy(logits[None].copy()))[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vocabulary", [7, 300, 49152])
def test_draws_are_the_defined_ones(way, vocabulary):
    random = np.random.default_rng(vocabulary)
    for seed in range(40 if vocabulary < 1000 else 8):
        logits = random.normal(0, 3, vocabulary).astype(np.float32)
        drawn = int(random.integers(0, 1000))
        assert native(logits, *way, seed, drawn) == defined(logits, *way, seed, drawn)


@pytest.mark.parametrize("way", WAYS)
def test_equal_logits_are_kept_or_dropped_together(way):
    random = np.random.default_rng(5)
    for seed in range(60):
        logits = random.integers(-3, 3, 50).astype(np.float32)
        assert native(logits, *way, seed, 0) == defined(logits, *way, seed, 0)


def test_a_token_without_probability_is_never_drawn():
    logits = np.full(100, -np.inf, np.float32)
    logits[[17, 42]] = 0.0
    found = {native(logits, 1.0, 1.0, 0, seed, 0) for seed in range(50)}
    assert found == {17, 42}


@pytest.mark.parametrize("logits", [[np.nan] * 9, [np.inf] * 9, [-np.inf] * 9, [np.nan, 1.0, 2.0, -np.inf, np.inf]])
def test_logits_that_are_not_numbers_give_some_token(logits):
    for way in WAYS:
        assert 0 <= native(np.array(logits, np.float32), *way, 1, 2) < len(logits)
