"""Growth: exact laws are found, places where two change the lead too, and the measurement reads what it is said to read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from octavo.bench.interrupt import Interrupt
from octavo.config import EngineConfig
from octavo.engine.build import build_kv
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import open_checkpoint
from octavo.scheduler.plan import StepPlan
from octavo.sweep.aged import age
from octavo.sweep.crossover import Crossover, crossover
from octavo.sweep.growth import fill, measure_growth
from octavo.sweep.growth_report import GrowthReport
from octavo.sweep.point import Setup
from octavo.sweep.power_law import fit
from octavo.sweep.runners import SharedRunner
from tests.checkpoints import tiny_llama
from tests.sweep.made import setup


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(tiny_llama(tmp_path_factory.mktemp("growth"))))


def test_an_exact_power_law_is_found_exactly() -> None:
    found = fit([(c, b, 0.001 * c**0.5 * b**0.25) for c in (100, 1000, 4000) for b in (1, 4, 16)])
    assert found is not None
    assert found.context is not None
    assert found.batch is not None
    assert found.context.value == pytest.approx(0.5)
    assert found.batch.value == pytest.approx(0.25)
    assert found.context.error == pytest.approx(0, abs=1e-9)
    assert found.worst == pytest.approx(0, abs=1e-9)


def test_the_error_is_that_of_a_line_by_hand() -> None:
    # log2 of context 0, 1, 2 and of time 0, 1, 1: slope 1/2; residuals -1/6, 1/3, -1/6, their squares' sum 1/6, one degree of
    # freedom, sum of squared distances 2: standard error sqrt(1/12), times Student's 63.657
    found = fit([(1, 3, 1.0), (2, 3, 2.0), (4, 3, 2.0)])
    assert found is not None
    assert found.batch is None  # it was not varied
    assert found.context is not None
    assert found.context.value == pytest.approx(0.5)
    assert found.context.error == pytest.approx(63.657 * math.sqrt(1 / 12))
    assert found.worst == pytest.approx(2 ** (1 / 3) - 1)


def test_no_exponent_without_anything_varied() -> None:
    assert fit([(512, 4, 0.1), (512, 4, 0.2)]) is None
    assert fit([(512, 4, 0.1), (1024, 8, 0.2)]) is None  # both at once: neither can be told
    two = fit([(512, 4, 0.1), (1024, 4, 0.2)])
    assert two is not None
    assert two.context is not None
    assert (two.context.value, two.context.error) == (pytest.approx(1.0), None)


def steady(value: float) -> list[float]:
    return [value * 0.999, value, value * 1.001]


def test_a_crossover_is_where_the_lines_meet() -> None:
    # a = context, b = 200 * sqrt(context / 200): they meet at 200; exact in the logarithms
    a = {c: steady(c) for c in (50, 100, 400, 800)}
    b = {c: steady(200 * math.sqrt(c / 200)) for c in (50, 100, 400, 800)}
    found = crossover("paged 16", "virtual", 4, a, b)
    assert found is not None
    assert (found.below, found.above, found.batch) == ("paged 16", "virtual", 4)
    assert found.context == pytest.approx(200, rel=0.01)
    other = crossover("virtual", "paged 16", 4, b, a)
    assert other is not None
    assert (other.below, other.above) == ("paged 16", "virtual")


def test_a_lead_within_noise_is_no_crossover() -> None:
    a = {100: steady(1.0), 1000: [2.0, 2.4, 2.8]}
    b = {100: steady(1.2), 1000: [1.9, 2.3, 2.7]}
    assert crossover("a", "b", 1, a, b) is None
    assert crossover("a", "b", 1, {100: steady(1)}, {200: steady(2)}) is None  # nothing in common


@pytest.mark.parametrize("layout", ["contiguous", "paged", "hybrid", "virtual"])
def test_filling_reaches_every_place_that_a_step_reads_and_no_other(checkpoint: Checkpoint, layout: str) -> None:
    config = EngineConfig(kv_layout=layout, kv_memory=2**18, max_model_len=128, max_num_seqs=4, threads=1)
    kv = build_kv(config, checkpoint)
    for slot, length in ((1, 40), (3, 100)):
        assert kv.admit(slot, [0] * length, expected=length, limit=length) is not None
    fill(kv, [3], 90)
    view = kv.view(StepPlan(0, ()))
    written = kv.arena.array().any(axis=-1)  # [layer][K|V][token]
    mine = view.token_indices(np.asarray(3), np.arange(90))
    assert written[:, :, mine].all()
    others = view.token_indices(np.asarray(1), np.arange(40))
    assert not written[:, :, others].any()
    assert written.sum() == 2 * 2 * 90


@pytest.mark.parametrize("layout", ["contiguous", "paged", "hybrid", "virtual"])
@pytest.mark.parametrize("block_size", [1, 16])
def test_an_aged_cache_is_empty_and_its_tables_are_in_no_order(checkpoint: Checkpoint, layout: str, block_size: int) -> None:
    blocks = block_size if layout in ("paged", "hybrid") else None
    config = EngineConfig(kv_layout=layout, block_size=blocks, kv_memory=2**18, max_model_len=128, max_num_seqs=8, threads=1)
    kv = build_kv(config, checkpoint)
    age(kv, 4)
    kv.check()
    assert (kv.usage().reserved, kv.usage().used) == (0, 0)
    assert kv.admit(0, [0] * 128, expected=128, limit=128) is not None
    places = kv.view(StepPlan(0, ())).token_indices(np.asarray(0), np.arange(128))
    neighbours = int((np.diff(places) == 1).sum())
    if layout != "paged":
        assert neighbours == 127  # hybrid has joined what was free
        return
    jumps = np.diff(places)[block_size - 1 :: block_size]  # from block to block
    assert len(jumps) == 128 // block_size - 1
    assert (np.abs(jumps) < 4 * block_size).mean() < 0.4  # of 32 blocks, few are near by chance
    assert 0.2 < (jumps > 0).mean() < 0.8  # and they do not go one way


def test_the_measurement_skips_with_a_reason_what_does_not_fit(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.machine.default_kv_memory", lambda: 0)
    config = EngineConfig(kv_layout="paged", block_size=16, kv_memory=2**18, max_model_len=256, max_num_seqs=4, threads=1)
    found = measure_growth(setup("paged", 16), config, (32, 200, 400), (1, 3, 5), checkpoint, SharedRunner(), Interrupt())
    assert found is not None
    assert [(p["context"], p["batch"]) for p in found["points"]] == [(32, 1), (32, 3), (200, 1)]
    assert all(p["step_s"] > 0 for p in found["points"])
    reasons = {(s["context"], s["batch"]): s["reason"] for s in found["skipped"]}
    assert reasons[200, 3] == "3 sequences of 200 tokens do not fit into 256 KiB."  # 512 tokens, 13 blocks each
    assert reasons[32, 5] == "a batch of 5 is beyond max_num_seqs=4."
    assert reasons[400, 1] == "a context of 400 is beyond max_model_len=256."


def test_an_interrupt_leaves_nothing_half_measured(checkpoint: Checkpoint) -> None:
    interrupt = Interrupt()
    interrupt.wanted = True
    config = EngineConfig(kv_layout="virtual", kv_memory=2**18, max_model_len=128, max_num_seqs=4, threads=1)
    assert measure_growth(setup("virtual"), config, (32,), (1,), checkpoint, SharedRunner(), interrupt) is None


def made(context: int, batch: int, step_s: float) -> dict[str, Any]:
    return {"context": context, "batch": batch, "step_s": step_s}


def test_the_report_tells_crossovers_or_that_there_is_none() -> None:
    def rounds(law: Any) -> list[dict[str, Any]]:
        return [
            {"points": [made(c, b, law(c, b) * f) for c in (100, 1000) for b in (1, 2)], "skipped": []} for f in (0.999, 1, 1.001)
        ]

    paged, virtual = Setup("paged", None, 16, "fused"), Setup("virtual", None, None, "fused")
    same = GrowthReport({paged: rounds(lambda c, b: c * b), virtual: rounds(lambda c, b: c * b)})
    assert same.lines()[-1] == (
        "Crossover between layouts: none within contexts of 100 to 1000 and batches of 1 to 2, beyond noise."
    )
    crossing = GrowthReport({paged: rounds(lambda c, b: c * b), virtual: rounds(lambda c, b: 300 * b)})
    near = pytest.approx(300, rel=0.01)
    assert crossing.crossovers == [Crossover("paged 16", "virtual", batch, near) for batch in (1, 2)]
    assert "paged 16 is faster below about 300 tokens, virtual above." in crossing.lines()[-1]
    document = crossing.json()
    assert document["setups"][0]["exponents"]["context"]["value"] == pytest.approx(1)
    assert document["setups"][1]["exponents"]["context"]["value"] == pytest.approx(0, abs=1e-6)
    assert document["crossovers"][0]["batch"] == 1
