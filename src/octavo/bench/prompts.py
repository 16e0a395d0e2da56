"""PromptMaker: token ids and text for a workload's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo.bench import context
from octavo.bench.words import COMMON, exact_words
from octavo.bench.workload import BenchRequest, Segment
from octavo.errors import WorkloadError

if TYPE_CHECKING:
    from octavo.models.tokenizer import Tokenizer

MARGIN = 32  # without a tokenizer, a part in so many of the vocabulary is left out at either end: special tokens are mostly there
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


class PromptMaker:
    """Contents for prompts. Token (or word) ``i`` of a segment follows from the seed, the segment's key and ``i`` alone: so equal
    keys have equal contents, a shorter segment is the beginning of a longer one, and two makers with one seed agree.

    Give another seed for contents that nothing has seen before: for a warm-up, or for a second round on a server that caches
    prefixes.

    seed:       any integer.
    vocab_size: of the model; enough for ``ids``. Its special tokens are not known then, so a margin at either end is not used.
    tokenizer:  the model's; ``ids`` then avoids its special tokens, and ``text`` has exact lengths.

    exact: whether ``text`` has exact lengths. If not, there is no tokenizer, or one with hardly any words; a common English word
           then stands for each token, which most tokenizers see so to within a few percent.
    """

    def __init__(self, seed: int, *, vocab_size: int | None = None, tokenizer: Tokenizer | None = None):
        self._seed = seed & MASK
        self._ids = _ordinary_ids(vocab_size, tokenizer)
        words = exact_words(tokenizer) if tokenizer is not None else ()
        self.exact = bool(words)
        self._words = words or COMMON

    def ids(self, request: BenchRequest) -> list[int]:
        """Token ids, ``request.prompt_tokens`` of them. Raises WorkloadError where neither vocabulary nor tokenizer is known."""
        if self._ids is None:
            raise WorkloadError("Token ids cannot be made without a vocab_size or a tokenizer: give one, or use text.")
        parts = [self._ids[self._draws(segment, len(self._ids))] for segment in request.segments]
        ids: list[int] = np.concatenate(parts).tolist()
        return ids

    def text(self, request: BenchRequest, overhead: int = 0) -> str:
        """A text of ``request.prompt_tokens - overhead`` tokens, at least one, special tokens not counted.

        overhead: tokens that the server puts around the text (a chat template, a beginning of sequence).
        """
        segments = context.first(request.segments, max(1, request.prompt_tokens - overhead))
        words = self._words
        return " ".join(" ".join([words[i] for i in self._draws(segment, len(words)).tolist()]) for segment in segments)

    def _draws(self, segment: Segment, bound: int) -> NDArray[np.int64]:
        """A number below ``bound`` for each token: SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators",
        OOPSLA 2014) of the token's place in the sequence that seed and key begin."""
        begin = _mix_one(_mix_one(self._seed + GOLDEN) ^ (segment.key & MASK))
        with np.errstate(over="ignore"):
            state = np.uint64(begin) + np.arange(1, segment.tokens + 1, dtype=np.uint64) * np.uint64(GOLDEN)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
        draws: NDArray[np.int64] = (state % np.uint64(bound)).astype(np.int64)
        return draws


def _mix_one(state: int) -> int:
    """The same function of one number."""
    state &= MASK
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def _ordinary_ids(vocab_size: int | None, tokenizer: Tokenizer | None) -> NDArray[np.int64] | None:
    """The ids that prompts are made of; None where there is nothing to take them from."""
    if tokenizer is not None:
        most = min(tokenizer.vocab_size, vocab_size or tokenizer.vocab_size)
        found = [i for i in range(most) if i not in tokenizer.special_ids and tokenizer.token_bytes(i)]
        return np.array(found, np.int64)
    if vocab_size is None:
        return None
    if vocab_size < 2:
        raise WorkloadError(f"vocab_size is {vocab_size}: at least 2 is accepted.")
    return np.arange(vocab_size // MARGIN, vocab_size - vocab_size // MARGIN, dtype=np.int64)
