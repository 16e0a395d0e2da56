"""The suites: fixed workloads that stress what a KV cache's layout decides. docs/workloads.md describes them in a reader's words.

Lengths are drawn from the distributions of ``lengths.py``, one from each of as many equal parts as there are requests, and then
shuffled: so even a few requests have the distribution's mean and its tail, and two seeds differ in little but the order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from octavo.bench import context
from octavo.bench.lengths import CODE_PROMPT, CONVERSATION_OUTPUT, CONVERSATION_PROMPT, Lengths
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.errors import WorkloadError

MOST_REQUESTS = 1_000_000
REFERENCE_CONTEXT = 8192  # what the lengths are meant for; on a smaller context all shrink in proportion, on a larger none grows
AZURE = "the Azure LLM inference traces of 2023"

SHORT_PROMPT = CONVERSATION_PROMPT.between(0, 0.25)
SHORT_OUTPUT = CONVERSATION_OUTPUT.between(0, 0.5)
LONG_PROMPT = CODE_PROMPT.between(0.5, 1)
VERY_LONG_PROMPT = CODE_PROMPT.between(0.925, 1)
VERY_LONG_EVERY = 16  # of bimodal's requests, one is very long
# Chosen, not fitted: the traces tell nothing of sharing. No multiple of any block size, so that what rounding loses shows.
SYSTEM_PROMPT_TOKENS = 1001
DOCUMENT_TOKENS = 2503

Item = TypeVar("Item")
Draft = tuple[list[tuple[int, int]], int]  # a prompt's parts as (key, tokens), and the output's tokens


@dataclass(frozen=True, slots=True)
class _Suite:
    requests: int  # unless the caller asks for another number
    source: str
    draft: Callable[[_Draw, int], list[Draft]]


class _Draw:
    """Random choices that depend on the seed and on nothing else, whatever the version of any library."""

    def __init__(self, seed: int, name: str):
        self._random = random.Random(f"{name} {seed}").random  # of all its methods, the one whose values are guaranteed to stay

    def spread(self, lengths: Lengths, count: int) -> list[int]:
        """``count`` lengths, one from each of as many parts of equal weight, in random order."""
        return self.shuffled([lengths.at((i + self._random()) / count) for i in range(count)])

    def shuffled(self, items: list[Item]) -> list[Item]:
        order = [self._random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=order.__getitem__)]

    def below(self, bound: int) -> int:
        return int(self._random() * bound)


def suite(name: str, *, requests: int | None = None, max_model_len: int, seed: int = 0) -> Workload:
    """A suite's requests; the same arguments give the same requests.

    requests:      how many; None: the suite's own number, made for a minute or two on two CPU cores with the default model.
    max_model_len: the model's context in tokens. Below REFERENCE_CONTEXT all lengths shrink in proportion.

    Raises WorkloadError for a name that is no suite, and for numbers that no workload can be made for.
    """
    if name not in _SUITES:
        raise WorkloadError(f"{name!r} is no suite: {', '.join(SUITES)} is accepted.")
    made = _SUITES[name]
    count = made.requests if requests is None else requests
    if not 1 <= count <= MOST_REQUESTS:
        raise WorkloadError(f"requests is {count}: a number from 1 to {MOST_REQUESTS} is accepted.")
    most = context.room(max_model_len)
    shrink = min(1.0, max_model_len / REFERENCE_CONTEXT)
    found, cut = [], 0
    for index, (parts, output) in enumerate(made.draft(_Draw(seed, name), count)):
        wanted = tuple(Segment(key, max(1, round(tokens * shrink))) for key, tokens in parts), max(1, round(output * shrink))
        segments, output = context.cut(*wanted, most)
        cut += (segments, output) != wanted
        found.append(BenchRequest(index, segments, output))
    return Workload(name, tuple(found), seed, made.source, _notes(shrink, cut, most, max_model_len))


def _notes(shrink: float, cut: int, most: int, max_model_len: int) -> tuple[str, ...]:
    notes = []
    if shrink < 1:
        notes.append(
            f"Lengths are multiplied by {shrink:.3g}: the suite is made for a context of {REFERENCE_CONTEXT}, the model's is "
            f"{max_model_len}."
        )
    if cut:
        notes.append(context.cut_note(cut, most))
    return tuple(notes)


def _alone(prompts: list[int], outputs: list[int]) -> list[Draft]:
    """Requests that share nothing."""
    return [([(index, prompt)], output) for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))]


def _short(draw: _Draw, count: int) -> list[Draft]:
    return _alone(draw.spread(SHORT_PROMPT, count), draw.spread(SHORT_OUTPUT, count))


def _long(draw: _Draw, count: int) -> list[Draft]:
    return _alone(draw.spread(LONG_PROMPT, count), draw.spread(CONVERSATION_OUTPUT, count))


def _mixed(draw: _Draw, count: int) -> list[Draft]:
    return _alone(draw.spread(CONVERSATION_PROMPT, count), draw.spread(CONVERSATION_OUTPUT, count))


def _bimodal(draw: _Draw, count: int) -> list[Draft]:
    """Of every VERY_LONG_EVERY requests one is very long; where among them is random."""
    places = {min(begin + draw.below(VERY_LONG_EVERY), count - 1) for begin in range(0, count, VERY_LONG_EVERY)}
    prompts = draw.spread(SHORT_PROMPT, count - len(places))
    very_long = draw.spread(VERY_LONG_PROMPT, len(places))
    return _alone(
        [very_long.pop() if index in places else prompts.pop() for index in range(count)], draw.spread(SHORT_OUTPUT, count)
    )


def _shared_prefix(draw: _Draw, count: int) -> list[Draft]:
    """One half begins with a system prompt, the other with a document; which request is of which is random."""
    shared = draw.shuffled([(0, SYSTEM_PROMPT_TOKENS) if i % 2 == 0 else (1, DOCUMENT_TOKENS) for i in range(count)])
    questions, outputs = draw.spread(SHORT_PROMPT, count), draw.spread(SHORT_OUTPUT, count)
    return [([shared[i], (2 + i, questions[i])], outputs[i]) for i in range(count)]


_SUITES = {
    "short": _Suite(
        64,
        f"Prompts: the shortest quarter of the conversations in {AZURE}; outputs: the shorter half of theirs.",
        _short,
    ),
    "long": _Suite(
        8,
        f"Prompts: the longer half of the code completions in {AZURE}; outputs: those of the conversations.",
        _long,
    ),
    "mixed": _Suite(32, f"Prompts and outputs: the conversations in {AZURE}.", _mixed),
    "bimodal": _Suite(
        48,
        f"Prompts: of every {VERY_LONG_EVERY} one from the longest 7.5 % of the code completions in {AZURE}, the others from the "
        "shortest quarter of the conversations; outputs: the shorter half of the conversations'.",
        _bimodal,
    ),
    "shared-prefix": _Suite(
        32,
        f"Half of the prompts begin with one system prompt of {SYSTEM_PROMPT_TOKENS} tokens, half with one document of "
        f"{DOCUMENT_TOKENS}; questions and outputs: as in the suite short.",
        _shared_prefix,
    ),
}
SUITES = tuple(_SUITES)
