"""Same tokens on a tiny random Llama on the native runner: the full product of layouts, block sizes, chunk sizes, scarce memory,
prefix caching, alone and in a batch. A sequence's arithmetic depends on its own tokens alone, so the tokens are exactly the same;
transformers in float32 is the oracle, up to the margin at which bfloat16 may turn a token."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from transformers import LlamaForCausalLM

from octavo.models.load import open_checkpoint
from octavo.native import isa
from octavo.runner.native_runner import NativeRunner
from tests.checkpoints import tiny_gguf, tiny_llama
from tests.identity.arms import CONTIGUOUS, PLACEMENTS, Arm, Arms
from tests.identity.oracle import continuations, margin

pytestmark = pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
TOKENS = 10
MAX_MODEL_LEN = 256
BF16_MARGIN = 0.25
WHOLE = Arm(("contiguous", 16), "fused", 2048, False, False, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("tiny")
    return tiny_llama(path, dtype="bfloat16", num_attention_heads=6, num_key_value_heads=2, hidden_size=96)


@pytest.fixture(scope="module")
def prompts():  # type: ignore[no-untyped-def]
    """Every other one begins alike, for 70 tokens."""
    rng = random.Random(4)
    prompts = [[rng.randrange(3, 259) for _ in range(rng.choice([1, 17, 60]))] for _ in range(32)]
    stem = [rng.randrange(3, 259) for _ in range(70)]
    return [stem + p[:20] if i % 2 else p for i, p in enumerate(prompts)]


@pytest.fixture(scope="module", params=[("BF16", "bfloat16"), ("BF16", "int8"), ("Q8_0", "bfloat16")], ids="-".join)
def subject(request, folder, prompts, tmp_path_factory):  # type: ignore[no-untyped-def]
    """The arms, and the continuations that the plainest of them gives."""
    kind, kv_dtype = request.param
    file = tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", folder, kind=kind)
    arms = Arms(
        open_checkpoint(str(file)), "bfloat16", slots=32, max_model_len=MAX_MODEL_LEN, runner=NativeRunner, kv_dtype=kv_dtype
    )
    return arms, arms.run(WHOLE, prompts, TOKENS, 32 * MAX_MODEL_LEN)[0]


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: f"{p[0]}{p[1]}")
def test_every_arm_gives_the_same_tokens(subject, prompts, placement) -> None:  # type: ignore[no-untyped-def]
    arms, expected = subject
    seen: Counter[str] = Counter()
    for chunk, scarce, prefix_caching, batch in itertools.product([5, 48, 2048], [False, True], [False, True], [1, 32]):
        arm = Arm(placement, "fused", max(chunk, batch + 4), scarce, prefix_caching, batch)
        some = prompts if batch == 32 else prompts[:4]  # the fourth begins as the second does
        capacity = 4 * MAX_MODEL_LEN if scarce else 32 * MAX_MODEL_LEN
        got, core = arms.run(arm, some, TOKENS, capacity, hybrid_threshold=64)
        assert got == expected[: len(some)], str(arm)
        seen["preemptions"] += core.stats().preemptions
        seen["prefix hits"] += core.stats().prefix_hits
    assert seen["prefix hits"] or placement[1] > 70 or not arms.shares(placement)  # the shared beginning is 70 tokens long
    if placement not in CONTIGUOUS:
        # There, a prompt and its output lie in one block, or in one page.
        assert seen["preemptions"] or placement[1] == 256 or not arms.shares(placement)


@pytest.mark.slow
def test_tokens_are_those_of_transformers_where_the_margin_is_large(folder, prompts) -> None:  # type: ignore[no-untyped-def]
    arms = Arms(open_checkpoint(str(folder)), "bfloat16", slots=32, max_model_len=MAX_MODEL_LEN, runner=NativeRunner)
    got, _ = arms.run(WHOLE, prompts, TOKENS, 32 * MAX_MODEL_LEN)
    model = LlamaForCausalLM.from_pretrained(folder).float()
    same = 0
    for prompt, one, other in zip(prompts, got, continuations(model, prompts, TOKENS), strict=True):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if at is None:
            same += 1
        else:
            assert margin(model, prompt + one[:at]) <= BF16_MARGIN
    assert same >= len(prompts) * 2 / 3
