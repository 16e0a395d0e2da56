"""Same tokens on a tiny random Llama in float32: the full product of layouts, block sizes, attention paths, chunk sizes, KV
memory so small that preemption happens, prefix caching, alone and in a batch; transformers is the oracle."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from transformers import LlamaForCausalLM

from octavo.models.load import open_checkpoint
from tests.checkpoints import tiny_llama
from tests.identity.arms import ATTENTION, CONTIGUOUS, PLACEMENTS, Arm, Arms
from tests.identity.oracle import continuations

TOKENS = 10
MAX_MODEL_LEN = 256


@pytest.fixture(scope="module")
def subject(tmp_path_factory):  # type: ignore[no-untyped-def]
    """The arms, 32 prompts and their continuations. Every other prompt begins alike, for 70 tokens."""
    folder = tiny_llama(tmp_path_factory.mktemp("tiny"), num_attention_heads=6, num_key_value_heads=2, hidden_size=96)
    rng = random.Random(4)
    prompts = [[rng.randrange(3, 259) for _ in range(rng.choice([1, 17, 60]))] for _ in range(32)]
    stem = [rng.randrange(3, 259) for _ in range(70)]
    prompts = [stem + p[:20] if i % 2 else p for i, p in enumerate(prompts)]
    expected = continuations(LlamaForCausalLM.from_pretrained(folder), prompts, TOKENS)
    return Arms(open_checkpoint(str(folder)), "float32", slots=32, max_model_len=MAX_MODEL_LEN, threads=1), prompts, expected


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: f"{p[0]}{p[1]}")
def test_every_arm_gives_transformers_tokens(subject, placement, attention) -> None:  # type: ignore[no-untyped-def]
    arms, prompts, expected = subject
    seen: Counter[str] = Counter()
    for chunk, scarce, prefix_caching, batch in itertools.product([5, 48, 2048], [False, True], [False, True], [1, 32]):
        arm = Arm(placement, attention, max(chunk, batch + 4), scarce, prefix_caching, batch)
        some = prompts if batch == 32 else prompts[:4]  # the fourth begins as the second does
        capacity = 4 * MAX_MODEL_LEN if scarce else 32 * MAX_MODEL_LEN
        got, core = arms.run(arm, some, TOKENS, capacity, hybrid_threshold=64)
        assert got == expected[: len(some)], str(arm)
        seen["preemptions"] += core.stats().preemptions
        seen["prefix hits"] += core.stats().prefix_hits
    assert seen["prefix hits"] or placement[1] > 70  # the shared beginning is 70 tokens long
    if placement not in CONTIGUOUS:
        assert seen["preemptions"] or placement[1] == 256  # there, a prompt and its output lie in one block
