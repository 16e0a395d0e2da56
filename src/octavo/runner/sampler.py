"""Sampling: one token from each row of logits, for all rows at once.

A row is greedy (the most likely token, the lowest id of several) or is drawn:

1. logits are divided by the temperature;
2. top_k keeps the tokens whose logit is at least the k-th largest (equal ones are all kept);
3. top_p, over what is left, keeps the tokens whose probability is at least that of the last one needed, from the most likely on,
   for their sum to reach top_p (again with all its equals);
4. one uniform number u picks the first token, in order of id, at which the running sum of the kept probabilities exceeds u times
   their total.

u depends on the sequence's seed and on how many tokens it has drawn before, on nothing else (``uniform``), so neither batch
mates nor preemption change what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from octavo.runner.launches import Launches
from octavo.scheduler.plan import SlotSampling

Int64s = npt.NDArray[np.int64]
CANDIDATES = (64, 1024)  # how many of the most likely tokens are looked at for top_p before the whole vocabulary is sorted


def uniform(seeds: npt.NDArray[np.uint64], drawn: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, tokens drawn before), both uint64; all arithmetic is modulo 2^64.

    mix is SplitMix64's output function:
        z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
    The number is (mix(mix(seed) + (drawn + 1) * 0x9E3779B97F4A7C15) >> 11) * 2^-53. The seed is mixed first so that no
    sequence's numbers are those of another, shifted.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    bits = _mix(_mix(seeds) + (drawn + np.uint64(1)) * step)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Sampler:
    """Sampling state of every slot: how it samples, its place in its random stream, and the token it sampled last."""

    def __init__(self, slots: int, launches: Launches):
        self.last = np.zeros(slots, np.int64)
        self._launches = launches
        self._temperature = np.zeros(slots, np.float32)
        self._top_p = np.ones(slots, np.float64)
        self._top_k = np.zeros(slots, np.int64)
        self._seed = np.zeros(slots, np.uint64)
        self._drawn = np.zeros(slots, np.uint64)

    def open(self, opened: Sequence[SlotSampling]) -> None:
        """Set how these slots sample from now on."""
        for new in opened:
            self._temperature[new.slot] = new.temperature
            self._top_p[new.slot] = new.top_p
            self._top_k[new.slot] = new.top_k
            self._seed[new.slot] = new.seed & 0xFFFFFFFFFFFFFFFF
            self._drawn[new.slot] = new.drawn

    def sample(self, slots: Int64s, logits: torch.Tensor) -> npt.NDArray[np.int32]:
        """The next token of each slot, int32 ``[slots]``, from its row of ``logits``, float32 ``[slots, vocabulary]``."""
        drawing = (self._temperature[slots] > 0) & (self._top_k[slots] != 1)
        tokens = np.empty(len(slots), np.int64)
        if not drawing.all():
            # numpy's argmax is several times faster than torch's; both take the first of equals.
            tokens[~drawing] = logits.numpy()[~drawing].argmax(-1) if drawing.any() else logits.numpy().argmax(-1)
        if drawing.any():
            chosen = logits if drawing.all() else self._launches(logits.index_select(0, torch.from_numpy(drawing.nonzero()[0])))
            tokens[drawing] = self._draw(slots[drawing], chosen)
        self._drawn[slots] += np.uint64(1)
        self.last[slots] = tokens
        return tokens.astype(np.int32)

    def _draw(self, slots: Int64s, logits: torch.Tensor) -> Int64s:
        count = self._launches
        # The largest is taken off before dividing, so that a temperature close to 0 gives a sharp distribution and no overflow.
        scaled = count(logits - torch.from_numpy(logits.numpy().max(-1, keepdims=True)))
        count(scaled.div_(torch.from_numpy(self._temperature[slots])[:, None]))
        self._keep_top_k(scaled, self._top_k[slots])
        probabilities = count(torch.softmax(scaled, -1))
        self._keep_top_p(probabilities, self._top_p[slots])
        sums = count(torch.cumsum(probabilities, -1, dtype=torch.float64))
        below = torch.from_numpy(uniform(self._seed[slots], self._drawn[slots]))[:, None]
        wanted = count(sums[:, -1:] * below)  # below the total, even rounded: u is at most 1 - 2^-53
        tokens: Int64s = count(torch.searchsorted(sums, wanted, right=True)).numpy()[:, 0]
        return np.minimum(tokens, logits.shape[1] - 1)  # logits that are not numbers would pick past the end

    def _keep_top_k(self, scaled: torch.Tensor, top_k: Int64s) -> None:
        """Set what lies below each row's k-th largest to minus infinity."""
        vocabulary = scaled.shape[1]
        rows = ((top_k > 0) & (top_k < vocabulary)).nonzero()[0]
        if not len(rows):
            return
        count = self._launches
        index = torch.from_numpy(rows)
        some = scaled if len(rows) == len(scaled) else count(scaled.index_select(0, index))
        largest = count(torch.topk(some, int(top_k[rows].max()))).values
        threshold = count(largest.gather(1, torch.from_numpy(top_k[rows] - 1)[:, None]))
        some = count(some.masked_fill(count(some < threshold), -torch.inf))
        count(scaled.index_copy_(0, index, some))

    def _keep_top_p(self, probabilities: torch.Tensor, top_p: npt.NDArray[np.float64]) -> None:
        """Set to 0 what lies below the last probability that is needed to reach top_p."""
        vocabulary = probabilities.shape[1]
        rows = (top_p < 1.0).nonzero()[0]
        count = self._launches
        for candidates in (*CANDIDATES, vocabulary):
            if not len(rows):
                return
            index, wanted = torch.from_numpy(rows), torch.from_numpy(top_p[rows])[:, None]
            some = probabilities if len(rows) == len(probabilities) else count(probabilities.index_select(0, index))
            candidates = min(candidates, vocabulary)
            largest = count(torch.topk(some, candidates)).values
            reached = count(count(torch.cumsum(largest, -1, dtype=torch.float64)) < wanted)
            needed = count(reached.sum(-1, keepdim=True))  # how many do not suffice, so also the index of the last one needed
            enough = needed.numpy()[:, 0] < candidates
            if candidates == vocabulary:
                enough[:] = True  # a sum just below top_p by rounding: keep all
            threshold = count(largest.gather(1, count(needed.clamp_(max=candidates - 1))))
            done = torch.from_numpy(enough)[:, None]
            below = count(count(some < threshold).logical_and_(done))
            some = count(some.masked_fill(below, 0.0))
            count(probabilities.index_copy_(0, index, some))
            rows = rows[~enough]
