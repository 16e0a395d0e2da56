"""Cutting a request to the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bench.workload import Segment
from octavo.errors import WorkloadError

LEAST_CONTEXT = 16
TEMPLATE_SHARE = 64  # one part in so many of the context is left to what a chat template puts around a prompt


def room(max_model_len: int) -> int:
    """Tokens that a prompt and its output may have together. Raises WorkloadError where that is too little."""
    if max_model_len < LEAST_CONTEXT:
        raise WorkloadError(f"max_model_len is {max_model_len}: a workload needs at least {LEAST_CONTEXT}.")
    return max_model_len - max_model_len // TEMPLATE_SHARE


def cut(segments: Sequence[Segment], output_tokens: int, most: int) -> tuple[tuple[Segment, ...], int]:
    """The request with at most ``most`` tokens in all.

    An output keeps its length up to half of them, or beyond as far as the prompt leaves room; the prompt gives up the rest, from
    its end, so that what it shares with others it goes on sharing.
    """
    prompt_tokens = sum(segment.tokens for segment in segments)
    if prompt_tokens + output_tokens <= most:
        return tuple(segments), output_tokens
    output_tokens = min(output_tokens, max(most // 2, most - prompt_tokens))
    return first(segments, most - output_tokens), output_tokens


def cut_note(count: int, most: int) -> str:
    """What a reader of the results must know of requests that were cut."""
    return f"{counted(count, 'request')} cut to {most} tokens, what the model's context leaves beside a chat template."


def counted(count: int, noun: str) -> str:
    """ "1 request", "2 requests"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first(segments: Sequence[Segment], tokens: int) -> tuple[Segment, ...]:
    """The first ``tokens`` of a prompt, or all of it where it is shorter."""
    kept = []
    for segment in segments:
        if tokens <= 0:
            break
        kept.append(segment if segment.tokens <= tokens else Segment(segment.key, tokens))
        tokens -= segment.tokens
    return tuple(kept)
