"""What the terminal says, for rounds made up so that everything follows by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.ladder.causes import CAUSES, INDIRECTION, Removed, subsets
from octavo.ladder.experiment import Load, Measured
from octavo.ladder.report import lines
from octavo.ladder.rounds import Rounds, planned
from octavo.ladder.shapley import shares

LOAD = Load(batch=8, context=1000, steps=4, every=4)
GAINS = {"attention": 4.0, "eager": 2.0, "block_size": 1.0, "block_management": 1.0, "overlap": 1.0}
LAYERS = 3


def made_up(scale: float = 1.0, pause: float = 2.0) -> Rounds:
    """What is removed gains its own factor, whatever else is removed. Without "block_management" one step of four is a pause,
    which takes ``pause`` times as long, while the others are as much faster. Times grow with the tokens alone."""
    rounds = Rounds(LOAD, tuple(cause.name for cause in CAUSES))
    for removed, load in planned(CAUSES, LOAD):
        rounds.runs[removed, load] = [one_run(removed, load, scale * drift, pause) for drift in (1.0, 1.5, 0.9)]
    return rounds


def one_run(removed: Removed, load: Load, scale: float, pause: float) -> Measured:
    mean = 1e-6 * scale * (sum(load.contexts) + load.batch * 6)
    for cause, gain in GAINS.items():
        mean *= 1.0 if cause in removed else gain
    usual = 4 * mean / (3 + pause)
    moved = "block_management" not in removed
    paged = INDIRECTION not in removed
    return Measured(
        itl_s=(usual, usual * pause, usual, usual) if moved else (mean,) * 4,
        compacted=(False, moved, False, False),
        launches=1 if "eager" in removed else 100,
        attention_launches=load.batch * LAYERS if "attention" not in removed else 0,
        busy=0.2 if not removed else 0.9,
        kv_bytes=6 * 2**20 if paged else 10 * 2**20,
        tokens=((1, 2), (3, 4)),
    )


def text(rounds: Rounds) -> str:
    return "\n".join(lines(rounds, shares(rounds.ladder(), rounds.causes), LAYERS))


def test_symptoms_that_are_there() -> None:
    found = text(made_up())
    for words in (
        "6 MiB        10 MiB  down, yes: 60% of contiguous",
        "20%           90%  below half, yes",
        "100             1  many, yes",
        "24             0  1 x 8 sequences x 3 layers",
        "flat, yes",
        "periodic spikes, yes: every 4 steps, the compaction",
    ):
        assert words in found


def test_symptoms_that_are_not() -> None:
    rounds = made_up(pause=1.0)
    for measured in rounds.runs.values():
        measured[:] = [replace(one, busy=0.9, kv_bytes=2**20) for one in measured]
    found = text(rounds)
    assert "down, no: 100% of contiguous" in found
    assert "below half, no" in found
    assert "periodic spikes, no: 0 of 3 compactions, the compaction" in found


def test_shares_are_ordered_and_lead_to_contiguous() -> None:
    rows = text(made_up()).splitlines()
    at = next(i for i, row in enumerate(rows) if row.startswith("Shares"))
    slow, first, second = (row.split() for row in rows[at + 1 : at + 4])
    assert float(slow[1]) == pytest.approx(8 * 1e-3 * 5048, abs=0.005)
    assert first[:4] == ["attention:", "per", "request", "to"]
    assert "x4.000" in first
    assert "x2.000" in second
    assert slow[-1] == "█" * 40
    assert first[-1] == "█" * 10 + "░" * 30
    assert any(row.startswith("best paged") and f"{5.048:9.2f}" in row for row in rows)
    assert any(row.startswith("contiguous") and "x1.000" in row for row in rows)


def test_what_was_claimed_is_not_reached_and_never_will_be() -> None:
    found = text(made_up())
    assert "All causes together: x8.000 (x8.000 to x8.000) at 8 sequences of 625 tokens" in found
    assert "a factor of 70 is not reached here" in found
    assert "no batch and no context reach a factor of 70 here; it tends to x8.000 for ever more sequences" in found
    assert "Blocks of 16 instead of 8 alone: x1.000 (x1.000 to x1.000) in the slow configuration" in found
    assert "claimed is a factor of 10" in found
    assert "Within the noise of these rounds: blocks: 8 to 16 tokens; block tables" in found
    assert "best paged to contiguous: x1.000 (x1.000 to x1.000), which is noise" in found
    assert "All 33 configurations computed the same tokens." in found


def test_what_was_claimed_is_reached_at_some_batch() -> None:
    """A step of the slow configuration takes 1 ms and 1 us a token, of the best 1 ms whatever there is."""
    rounds = made_up()
    for (removed, load), measured in rounds.runs.items():
        tokens = sum(load.contexts) + load.batch * 6
        if removed == rounds.best:
            measured[:] = [replace(one, itl_s=(1e-3,) * 4) for one in measured]
        elif not removed:
            measured[:] = [replace(one, itl_s=(1e-3 + 1e-6 * tokens,) * 4) for one in measured]
    context = 625 + 6
    assert (
        f"a factor of 70 needs {69e-3 / 1e-6 / context:.0f} sequences of {context} tokens or 8 sequences of 8625 tokens"
        in text(rounds)
    )


def test_different_tokens_are_told() -> None:
    rounds = made_up()
    rounds.of(rounds.best)[1] = replace(rounds.of(rounds.best)[1], tokens=((1, 2), (3, 5)))
    assert "DIFFERENT tokens" in text(rounds)
    assert sum(1 for _ in subsets(CAUSES)) == 32
