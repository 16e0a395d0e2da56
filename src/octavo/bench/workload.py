"""Workload: what is asked of a server, as lengths, sharing and arrivals. No text and no token ids: ``prompts.py`` makes those."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt. Two segments with the same key have the same content: the shorter is a prefix of the longer.

    key:    names the content; any integer.
    tokens: its length, at least 1.
    """

    key: int
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise WorkloadError(f"A segment has {self.tokens} tokens: at least 1 is accepted.")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request.

    index:         its place in the workload, from 0.
    segments:      the prompt is their contents in this order; requests share a prefix where their leading segments agree.
    output_tokens: how many tokens it asks for, at least 1; the model's own end of sequence is to be ignored.
    arrival_s:     seconds after the start of the workload at which it is sent; None: the arrival process decides.
    """

    index: int
    segments: tuple[Segment, ...]
    output_tokens: int
    arrival_s: float | None = None

    def __post_init__(self) -> None:
        if not self.segments:
            raise WorkloadError(f"Request {self.index} has no prompt: at least one segment is accepted.")
        if self.output_tokens < 1:
            raise WorkloadError(f"Request {self.index} asks for {self.output_tokens} tokens: at least 1 is accepted.")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they are sent.

    name:   the suite's, or the trace's file name.
    seed:   of every random choice that was made; the same name and seed give the same workload.
    source: one sentence: where the lengths come from.
    notes:  sentences that a reader of the results must know, such as how many requests were cut to the model's context.
    """

    name: str
    requests: tuple[BenchRequest, ...]
    seed: int
    source: str
    notes: tuple[str, ...] = ()
