"""The ladder as JSON."""

from __future__ import annotations

import statistics
from typing import Any

from octavo.ladder.rounds import Rounds
from octavo.ladder.shapley import Share, ratio

SCHEMA = 1


def as_json(rounds: Rounds, found: list[Share]) -> dict[str, Any]:
    """``total_factor``: slow to best paged, the product of the shares' factors. ``runs``: every subset of the causes, and one
    more from which "indirection" is removed, too: contiguous. Figures of a run are medians of the rounds. ``low`` and ``high``
    are null where there was one round; ``device_busy`` where the runner cannot tell."""
    return {
        "schema": SCHEMA,
        "total_factor": ratio(rounds.times(frozenset()), rounds.times(rounds.best)).factor,
        "shares": [
            {"cause": share.cause, "factor": share.factor.factor, "low": share.factor.low, "high": share.factor.high}
            for share in found
        ],
        "runs": [_run(rounds, removed) for removed in (*rounds.ladder(), rounds.contiguous)],
    }


def _run(rounds: Rounds, removed: frozenset[str]) -> dict[str, Any]:
    measured = rounds.of(removed)
    busy = [one.busy for one in measured if one.busy is not None]
    order = (*rounds.causes, *removed)
    return {
        "removed": sorted(removed, key=order.index),
        "itl_mean_ms": 1e3 * statistics.median(one.mean_s for one in measured),
        "launches_per_step": measured[0].launches,
        "attention_launches_per_step": measured[0].attention_launches,
        "device_busy": statistics.median(busy) if busy else None,
        "kv_bytes": measured[0].kv_bytes,
    }
