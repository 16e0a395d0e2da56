"""The ladder in the terminal: the symptoms, the shares as a waterfall, and what they come to in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.ladder.causes import CAUSES
from octavo.ladder.experiment import WARMUP, Measured
from octavo.ladder.growth import batch_where, context_where
from octavo.ladder.rounds import Rounds
from octavo.ladder.shapley import Factor, Share, ratio
from octavo.units import format_bytes

CLAIMED_TOTAL = 70.0
CLAIMED_BLOCKS = 10.0
WIDTH = 44  # of a row's words
BAR = 40
SPIKE = 1.5  # a step that takes so many times the median is one
FLAT = 1.25  # so much above the median nine of ten steps may lie where a latency is called flat
MOST = 1e9  # a batch or context beyond this is none
WORDS = {cause.name: cause.words for cause in CAUSES}


def lines(rounds: Rounds, found: list[Share], layers: int) -> Iterator[str]:
    """All of it. layers: of the model."""
    yield from symptoms(rounds, layers)
    yield ""
    yield from waterfall(rounds, found)
    yield ""
    yield from orders(found)
    yield ""
    yield from sentences(rounds, found)


# ---- the symptoms


def symptoms(rounds: Rounds, layers: int) -> Iterator[str]:
    """Slow beside contiguous, and for each symptom of the case whether it is there."""
    slow, other = (_Figures.of(rounds.of(removed)) for removed in (frozenset[str](), rounds.contiguous))
    batch = rounds.load.batch
    yield f"{'Symptoms':{WIDTH}}{'slow':>14}{'contiguous':>14}"
    memory = slow.kv_bytes / other.kv_bytes
    down = f"{_is(memory < 1)}: {memory:.0%} of contiguous"
    yield _row("KV memory reserved", format_bytes(slow.kv_bytes), format_bytes(other.kv_bytes), f"down, {down}")
    if slow.busy is not None and other.busy is not None:
        yield _row("device busy", f"{slow.busy:.0%}", f"{other.busy:.0%}", f"below half, {_is(slow.busy < 0.5)}")
    else:
        yield _row("device busy", "unknown", "unknown", "this runner cannot tell")
    yield _row("launches a step", slow.launches, other.launches, f"many, {_is(slow.launches > 10 * other.launches)}")
    each = slow.attention_launches / (batch * layers)
    exactly = f"{each:.3g} x {batch} sequences x {layers} layers"
    yield _row("of these, attention", slow.attention_launches, other.attention_launches, exactly)
    yield _row("time from token to token, median", _ms(slow.median_s), _ms(other.median_s), "")
    yield _row("90 % of steps take at most", _ms(slow.p90_s), _ms(other.p90_s), f"flat, {_is(slow.p90_s < FLAT * slow.median_s)}")
    yield _row("the longest", _ms(slow.longest_s), _ms(other.longest_s), _spikes(rounds))


@dataclass(frozen=True, slots=True)
class _Figures:
    """Medians of the rounds."""

    kv_bytes: int
    busy: float | None
    launches: int
    attention_launches: int
    median_s: float
    p90_s: float
    longest_s: float

    @classmethod
    def of(cls, measured: list[Measured]) -> _Figures:
        times = [sorted(one.itl_s) for one in measured]
        busy = [one.busy for one in measured if one.busy is not None]
        return cls(
            measured[0].kv_bytes,
            statistics.median(busy) if busy else None,
            measured[0].launches,
            measured[0].attention_launches,
            statistics.median(map(statistics.median, times)),
            statistics.median(one[int(0.9 * (len(one) - 1))] for one in times),
            statistics.median(one[-1] for one in times),
        )


def _spikes(rounds: Rounds) -> str:
    """Steps of the slow configuration that are far above the median, and whether the compaction made them."""
    spikes = compactions = both = 0
    for one in rounds.of(frozenset()):
        median = statistics.median(one.itl_s)
        above = [itl > SPIKE * median for itl in one.itl_s]
        spikes += sum(above)
        compactions += sum(one.compacted)
        both += sum(a and b for a, b in zip(above, one.compacted, strict=True))
    if not compactions:
        return "nothing was compacted"
    periodic = both == compactions
    every = f"every {rounds.load.every} steps" if periodic else f"{both} of {compactions} compactions"
    rest = f", {spikes - both} others" if spikes > both else ""
    return f"periodic spikes, {_is(periodic)}: {every}, the compaction{rest}"


# ---- the shares


def waterfall(rounds: Rounds, found: list[Share]) -> Iterator[str]:
    """From slow down to the best paged configuration by Shapley shares, the largest first; then contiguous."""
    slow = statistics.median(rounds.times(frozenset()))
    ordered = sorted(found, key=lambda share: -share.factor.factor)
    indirection = ratio(rounds.times(rounds.best), rounds.times(rounds.contiguous))
    levels = [slow]
    for share in ordered:
        levels.append(levels[-1] / share.factor.factor)
    scale = max(levels)
    yield f"{'Shares, whatever the order of removal':{WIDTH}}{'ms':>9}{'factor':>9}{'95 % interval':>18}"
    yield _rung("slow", slow, slow, scale)
    for share, before, level in zip(ordered, levels, levels[1:], strict=False):
        yield _rung(WORDS[share.cause], before, level, scale, share.factor)
    best = levels[-1]
    yield _rung("best paged", best, best, scale)
    yield f"{'':{WIDTH}}{'-' * 9:>9}"
    yield _rung("contiguous: indirection itself, apart", best, best / indirection.factor, scale, indirection)


def _rung(words: str, before: float, seconds: float, scale: float, factor: Factor | None = None) -> str:
    left = round(BAR * seconds / scale)
    gone = max(0, round(BAR * before / scale) - left)
    figures = "" if factor is None else f"{_times(factor.factor):>9}{_interval(factor):>18}"
    return f"{words:{WIDTH}}{1e3 * seconds:9.2f}{figures:27}  {'█' * left}{'░' * gone}"


def orders(found: list[Share]) -> Iterator[str]:
    """How much a cause gains at its turn, by when that comes."""
    yield f"{'Removed':{WIDTH}}{'first':>9}{'95 % interval':>18}{'last':>9}{'95 % interval':>18}{'least':>9}{'most':>9}"
    for share in found:
        yield (
            f"{WORDS[share.cause]:{WIDTH}}{_times(share.alone.factor):>9}{_interval(share.alone):>18}"
            f"{_times(share.last.factor):>9}{_interval(share.last):>18}{_times(share.least):>9}{_times(share.most):>9}"
        )


# ---- in words


def sentences(rounds: Rounds, found: list[Share]) -> Iterator[str]:
    """The total beside what was claimed, blocks alone beside what was claimed, and how the total would grow."""
    total = ratio(rounds.times(frozenset()), rounds.times(rounds.best))
    reached = "reached" if total.factor >= CLAIMED_TOTAL else "not reached"
    context = round(sum(rounds.load.contexts) / rounds.load.batch)
    yield (
        f"All causes together: {_times(total.factor)}{_within(total)} at {rounds.load.batch} sequences of {context} tokens on "
        f"average; a factor of {CLAIMED_TOTAL:g} is {reached} here."
    )
    yield from _growth(rounds, context)
    for share in found:
        if share.cause == "block_size":
            yield (
                f"Blocks of 16 instead of 8 alone: {_times(share.alone.factor)}{_within(share.alone)} in the slow configuration, "
                f"{_times(share.last.factor)}{_within(share.last)} in the best; claimed is a factor of {CLAIMED_BLOCKS:g}."
            )
    noise = [WORDS[share.cause] for share in found if _is_noise(share.factor)]
    if noise:
        yield f"Within the noise of these rounds: {'; '.join(noise)}."
    indirection = ratio(rounds.times(rounds.best), rounds.times(rounds.contiguous))
    yield (
        f"Indirection itself, best paged to contiguous: {_times(indirection.factor)}{_within(indirection)}"
        f"{', which is noise' if _is_noise(indirection) else ''}."
    )
    if rounds.same_tokens:
        yield f"All {len(rounds.ladder()) + 1} configurations computed the same tokens."
    else:
        yield "Configurations computed DIFFERENT tokens: something is wrong with one of them."
    if rounds.count == 1:
        yield "There was one round only, so nothing can be said about noise."


def _growth(rounds: Rounds, context: int) -> Iterator[str]:
    slow, best = rounds.growth(frozenset()), rounds.growth(rounds.best)
    batch, context = rounds.load.batch, context + WARMUP + rounds.load.steps // 2
    yield (
        f"Fitted: a step takes {_terms(slow.step, slow.of_a_sequence(context))} in the slow configuration and "
        f"{_terms(best.step, best.of_a_sequence(context))} in the best, at {context} tokens each; "
        f"a token of context costs {1e6 * slow.token:.3g} and {1e6 * best.token:.3g} us."
    )
    many = batch_where(slow, best, CLAIMED_TOTAL, context)
    long = context_where(slow, best, CLAIMED_TOTAL, batch)
    found = []
    if many is not None and many < MOST:
        found.append(f"{many:.0f} sequences of {context} tokens")
    if long is not None and long < MOST:
        found.append(f"{batch} sequences of {long:.0f} tokens")
    if found:
        yield f"By that fit, an extrapolation, a factor of {CLAIMED_TOTAL:g} needs {' or '.join(found)}."
        return
    limits = []
    if best.of_a_sequence(context):
        limits.append(f"{_times(slow.of_a_sequence(context) / best.of_a_sequence(context))} for ever more sequences")
    if best.token:
        limits.append(f"{_times(slow.token / best.token)} for ever longer ones")
    tends = f"; it tends to {' and '.join(limits)}" if limits else ""
    yield f"By that fit, an extrapolation, no batch and no context reach a factor of {CLAIMED_TOTAL:g} here{tends}."


def _terms(step: float, sequence: float) -> str:
    return f"{1e3 * step:.3g} ms and {1e3 * sequence:.3g} ms a sequence"


def _is_noise(factor: Factor) -> bool:
    return factor.low is not None and factor.high is not None and factor.low <= 1.0 <= factor.high


def _row(words: str, slow: object, other: object, verdict: str) -> str:
    return f"{words:{WIDTH}}{slow!s:>14}{other!s:>14}  {verdict}".rstrip()


def _is(there: bool) -> str:
    return "yes" if there else "no"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _times(factor: float) -> str:
    return f"x{factor:.3f}" if factor < 10 else f"x{factor:.1f}"


def _interval(factor: Factor) -> str:
    return "" if factor.low is None or factor.high is None else f"{_times(factor.low)} to {_times(factor.high)}"


def _within(factor: Factor) -> str:
    interval = _interval(factor)
    return f" ({interval})" if interval else ""
