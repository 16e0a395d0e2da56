"""Greedy continuations by transformers: the oracle."""

from __future__ import annotations

from typing import Any

import torch


def continuations(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """What ``model.generate`` says after each prompt, one at a time, end tokens ignored."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        found.append(out[0, len(prompt) :].tolist())
    return found


def margin(model: Any, context: list[int]) -> float:
    """The distance between the two largest logits after ``context``."""
    with torch.inference_mode():
        top = model(torch.tensor([context])).logits[0, -1].topk(2).values
    return float(top[0] - top[1])
