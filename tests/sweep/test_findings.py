"""The three sentences, from figures made by hand: what is a knee, what is noise, what is advised."""

from __future__ import annotations

import pytest

from octavo.sweep.findings import best, findings, knee, pareto
from octavo.sweep.noise import difference
from octavo.sweep.point import Group
from octavo.sweep.rows import setup_of
from tests.sweep.made import row, setup

STEADY = (0.99, 1.0, 1.01)  # rounds within a percent of each other


def steady(value: float) -> list[float]:
    return [value * factor for factor in STEADY]


def made(
    layout: str, block: int | None, reserved: int, p99: float, tok_s: float, fits: int = 10, **more: object
) -> dict[str, object]:
    return row(setup(layout, block), reserved=reserved, p99_ms=steady(p99), tok_s=steady(tok_s), fits=fits, **more)  # type: ignore[arg-type]


def titles(rows: list[dict[str, object]]) -> list[str]:
    return [setup_of(row).title for row in rows]


def test_a_difference_is_beyond_noise_only_where_the_rounds_agree() -> None:
    assert difference(steady(100), steady(110)).more
    assert difference(steady(110), steady(100)).less
    assert not difference(steady(100), steady(101)).beyond
    assert not difference([100, 130, 90], [110, 140, 100]).beyond  # 10 %, and the rounds are 40 % apart
    assert difference([100], [109]).beyond is False  # a single round tells nothing under 10 %
    assert difference([100], [111]).more


def test_the_front_leaves_out_what_costs_memory_and_gains_nothing() -> None:
    rows = [
        made("paged", 1, 300, 80, 100),
        made("paged", 16, 330, 60, 100),
        made("paged", 32, 350, 60.3, 100),  # noise
        made("paged", 256, 400, 90, 100),  # worse
        made("virtual", None, 900, 40, 100),
    ]
    assert titles(pareto(rows)) == ["paged 1", "paged 16", "virtual"]
    # 330 is a tenth of the way from 300 to 900 on a logarithmic scale, and 60 two fifths of that from 80 to 40
    found = knee(pareto(rows))
    assert found is not None
    assert setup_of(found).title == "paged 16"


def test_of_the_same_memory_the_faster_one_is_on_the_front() -> None:
    rows = [made("paged", 1, 300, 80, 100), made("paged", 16, 303, 60, 100)]
    assert titles(pareto(rows)) == ["paged 16"]


def test_no_knee_on_a_straight_line_or_between_two() -> None:
    line = [made("paged", 1, 100, 80, 100), made("paged", 2, 200, 40, 100), made("paged", 4, 400, 20, 100)]
    bent_up = [made("paged", 1, 100, 80, 100), made("paged", 2, 200, 70, 100), made("paged", 4, 400, 20, 100)]
    assert knee(pareto(bent_up)) is None
    assert knee(pareto(line[:2])) is None


def test_throughput_comes_before_latency() -> None:
    rows = [
        made("contiguous", None, 900, 40, 60),  # few at once: short steps, little done
        made("paged", 16, 310, 60, 100),
        made("paged", 256, 400, 75, 100),
    ]
    assert titles(best(rows)) == ["paged 16"]


def test_the_sentences_with_a_knee() -> None:
    rows = [
        row(setup("contiguous", reserve="max-len"), reserved=900, p99_ms=steady(40), tok_s=steady(60), fits=5),
        made("paged", 1, 300, 80, 100, 36),
        made("paged", 16, 330, 60, 100, 35),
        made("paged", 64, 340, 60.2, 100, 33),
        made("virtual", None, 332, 60.5, 100, 35),
    ]
    where, noise, advice = findings(rows)
    assert where == (
        "Knee, p99 ITL against KV memory reserved at the peak: on mixed it is at paged 16 (330 MiB, 60.00 ms), between paged 1 "
        "(300 MiB, 80.00 ms) and contiguous (max-len) (900 MiB, 40.00 ms)."
    )
    assert noise == (
        "Noise, by Welch's t test over 3 rounds, 99 % interval: on mixed the p99 ITL of paged 64 and virtual differs from that "
        "of paged 16 by no more than noise, that of contiguous (max-len) (-33%) and paged 1 (+33%) by more."
    )
    assert advice == (
        "It would set --kv-layout paged --block-size 16: on mixed nothing has more throughput, and of what has as much nothing a "
        "lower p99 ITL, beyond noise, and 35 requests fit into 1 GiB (contiguous (max-len) 5)."
    )


def test_the_sentences_where_all_is_noise() -> None:
    rows = [made("paged", 8, 300, 60, 100, 35), made("paged", 16, 330, 60.3, 100, 34), made("virtual", None, 312, 59.8, 100, 32)]
    where, noise, advice = findings(rows)
    assert (
        "on mixed there is none: paged 8 (300 MiB, 60.00 ms) takes least memory, and nothing has a lower p99 ITL beyond noise."
        in where
    )
    assert "the p99 ITL of paged 8 and virtual" in noise or "the p99 ITL of paged 16 and virtual" in noise
    assert noise.endswith("by no more than noise.")
    assert advice.startswith(
        "It would set --kv-layout paged --block-size 8:"
    )  # a tenth less memory, and as much fits but for a twentieth


def test_among_equals_the_default_is_advised() -> None:
    rows = [made("paged", 8, 310, 60, 100, 35), made("paged", 16, 311, 60.3, 100, 35)]
    assert findings(rows)[2].startswith("It would set --kv-layout paged --block-size 16:")


def test_a_single_round_says_so() -> None:
    rows = [
        row(setup("paged", 8), reserved=300, p99_ms=[60], tok_s=[100]),
        row(setup("paged", 16), reserved=310, p99_ms=[64], tok_s=[99]),
    ]
    assert findings(rows)[1].startswith("Noise, by a single round, of which nothing under 10% is told: on mixed the p99 ITL of")


def test_groups_are_not_compared_with_each_other() -> None:
    short = Group("short", 8, 2**29)
    rows = [
        made("paged", 16, 310, 60, 100), made("paged", 256, 400, 80, 100),
        made("paged", 16, 110, 30, 300, group=short), made("paged", 256, 200, 30.1, 300, group=short),
    ]  # fmt: skip
    where, noise, advice = findings(rows)
    assert "on mixed, 16 at once, 1 GiB of KV memory, there is none: paged 16" in where
    assert "on short, 8 at once, 512 MiB of KV memory, there is none: paged 16" in where
    assert "paged 256 (+33%)" in noise
    assert advice.count("nothing has more throughput") == 2


def test_a_table_without_answers_has_no_findings() -> None:
    empty = made("paged", 16, 310, 60, 100)
    empty["rounds"] = [{**made_round, "itl_s": None} for made_round in empty["rounds"]]  # type: ignore[attr-defined]
    assert findings([empty]) == []


@pytest.mark.parametrize("values", [([0.0, 1.0], [1.0, 1.0])])
def test_a_zero_is_no_reason_to_fail(values: tuple[list[float], list[float]]) -> None:
    assert not difference(values[1], values[0]).more
