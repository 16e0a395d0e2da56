"""``octavo sweep`` as a user calls it, on a tiny model: the table, the files, the schema, going on, and stopping."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from octavo.bench.compare import read_results
from octavo.cli import main
from octavo.sweep import runners, session
from octavo.sweep.html import svg
from octavo.sweep.marks import Axis, panels
from octavo.sweep.measure import Bench
from octavo.sweep.png import write_png
from tests.checkpoints import tiny_llama
from tests.sweep.made import row, setup

SPREAD = {
    "type": "object",
    "required": ["mean", "p50", "p90", "p99", "max"],
    "additionalProperties": {"type": "number", "minimum": 0},
}
COUNT = {"type": "integer", "minimum": 0}
NAMES = {
    "layout": {"enum": ["contiguous", "paged", "hybrid", "virtual"]},
    "reserve": {"enum": ["max-len", "request", "grow", None]},
    "block_size": {"type": ["integer", "null"]},
    "suite": {"type": "string"},
    "attention": {"enum": ["fused", "gather", "per-request"]},
    "concurrency": COUNT,
    "kv_reserved": COUNT,
    "kv_used": COUNT,
    "kv_wasted": COUNT,
    "fits": COUNT,
    "itl_s": SPREAD,
    "ttft_s": SPREAD,
    "output_tok_s": {"type": "number"},
    "launches_per_step": {"type": "number"},
}
SCHEMA = {
    "type": "object",
    "required": ["schema", "rows"],
    "properties": {
        "schema": {"const": 1},
        "rows": {"type": "array", "minItems": 1, "items": {"type": "object", "required": list(NAMES), "properties": NAMES}},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("sweep")))


@pytest.fixture
def sweep(model: str, tmp_path: Path) -> Callable[..., int]:
    def call(*words: str) -> int:
        engine = ["--model", model, "--threads", "1", "--max-model-len", "128", "--kv-memory", "1MiB"]
        return main(["sweep", *engine, "--out", str(tmp_path / "run"), *words])

    return call


SMALL = ("--block-sizes", "4,16", "--concurrency", "4", "--contexts", "16,64", "--batches", "1,2", "--repeat", "2")


def test_the_whole_of_it(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    build = runners.build_runner
    monkeypatch.setattr("octavo.sweep.growth.ENOUGH_S", 0.0)
    monkeypatch.setattr(runners, "build_runner", lambda *given: loads.append(given[0].attention) or build(*given))
    assert sweep(*SMALL, "--json", "-") == 0
    assert loads == ["fused"]  # seven configurations, two rounds and their growth on weights that were loaded once
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    rows = {(r["layout"], r["reserve"], r["block_size"]): r for r in document["rows"]}
    assert len(rows) == 7
    whole, paged = rows["contiguous", "max-len", None], rows["paged", None, 4]
    assert whole["fits"] == 2048 // 128
    assert whole["kv_reserved"] == 4 * 128 * 512  # four at once, each with max_model_len tokens of 512 bytes
    assert paged["kv_reserved"] < whole["kv_reserved"] / 2
    assert paged["fits"] > 2 * whole["fits"]
    assert all(r["kv_reserved"] == r["kv_used"] + r["kv_wasted"] for r in (whole, paged))  # 1 MiB is whole runs, and whole blocks
    assert paged["kv_wasted"] <= 4 * 3 * 512  # the rest of a last block of 4, in each of four
    assert whole["table_bytes"] == 4 * 4 < paged["table_bytes"]
    assert {r["suite"] for r in rows.values()} == {"mixed"}
    assert all(len(r["rounds"]) == 2 and r["failed"] == 0 for r in rows.values())
    low, high = paged["spread"]["itl_s"]["p99"]
    assert low <= paged["itl_s"]["p99"] <= high
    assert len(document["findings"]) == 3
    assert (
        document["skipped"][0]["reason"] == "contiguous and virtual have no blocks: measured once, not once for each block size."
    )
    growth = document["growth"]["setups"]
    assert [(s["layout"], s["block_size"]) for s in growth] == [
        ("contiguous", None), ("paged", 4), ("paged", 16), ("hybrid", 4), ("hybrid", 16), ("virtual", None),
    ]  # fmt: skip
    assert len(growth[0]["points"]) == 4
    for text in ("contiguous (max-len)", "paged 16", "of max-len", "TTFT mean", "Skipped:", *document["findings"]):
        assert text in err
    run = tmp_path / "run"
    assert json.loads((run / "table.json").read_text())["rows"] == document["rows"]
    assert document["findings"][2] in (run / "table.txt").read_text()
    (kept,) = read_results(run / "points/mixed-c4-1048576-paged-4-fused/round-2.json")  # octavo bench compare reads them
    assert kept["metrics"]["completed"] == 32
    page = (run / "plot.html").read_text()
    assert re.findall(r"(?:src|href)=", page) == []  # it needs nothing else
    assert "prefers-color-scheme: dark" in page


def test_it_goes_on_where_it_was_killed(
    sweep: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []
    real = Bench.run

    def counted(self: Bench, point: Any, *given: Any) -> Any:
        if len(measured) == 3:
            raise RuntimeError("killed")
        measured.append(point.slug)
        return real(self, point, *given)

    monkeypatch.setattr(Bench, "run", counted)
    words = ("--layouts", "paged,virtual", "--block-sizes", "4,16", "--contexts", "0", "--repeat", "2")
    with pytest.raises(RuntimeError, match="killed"):
        sweep(*words)
    first, measured[:] = list(measured), []
    assert sweep(*words, "--json", "-") == 0
    # A B C A B C: what the first call measured is not measured again, and the second round begins where it stopped
    assert [slug.partition("1048576-")[2] for slug in first] == ["paged-4-fused", "paged-16-fused", "virtual-fused"]
    assert measured == first
    document = json.loads(capsys.readouterr().out)
    assert [len(r["rounds"]) for r in document["rows"]] == [2, 2, 2]
    measured.clear()
    assert sweep(*words) == 0  # all is there: it tells the table again
    assert measured == []
    assert sweep("--layouts", "paged", "--block-sizes", "4", "--contexts", "0", "--repeat", "2") == 1
    assert "begun with layouts=paged,virtual, now paged; block_sizes=4,16, now 4" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(
    sweep: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real = session.Session._measure

    def stopped(self: session.Session, piece: session.Piece, interrupt: Any) -> Any:
        interrupt.wanted = piece.what.setup.layout == "virtual"  # type: ignore[union-attr]
        return real(self, piece, interrupt)

    monkeypatch.setattr(session.Session, "_measure", stopped)
    words = ("--layouts", "paged,virtual", "--block-sizes", "16", "--contexts", "0", "--repeat", "1")
    assert sweep(*words) == 130
    assert f"the same command with --out {tmp_path / 'run'} goes on from here" in capsys.readouterr().err
    assert len(list((tmp_path / "run/points").iterdir())) == 1


def test_quick_chooses_once(
    sweep: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--quick", "--layouts", "paged", "--block-sizes", "16", "--contexts", "0")
    assert sweep(*words) == 0
    chosen = json.loads((tmp_path / "run/chosen.json").read_text())
    assert chosen == {"rounds": 3, "requests": 48, "context": 8192}  # a tiny model leaves time for all
    assert "quick: 3 rounds of 48 requests, as long as in a context of 128" in capsys.readouterr().err
    monkeypatch.setattr("octavo.sweep.command.time_engine", None)  # it would not be callable
    assert sweep(*words) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--json", "/nowhere/at/all.json"), "json is /nowhere/at/all.json: a file in a folder that is there"),
        (("--layouts", "paged", "--compaction", "pause"), "compaction is pause, but no layout that is swept can use it"),
        (("--block-sizes", "3"), "block_sizes is '3'"),
    ],
)
def test_what_is_refused_leaves_no_directory(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert sweep(*words) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


ROWS = [
    row(setup("contiguous", reserve="max-len"), reserved=900, p99_ms=[40, 41], tok_s=[60, 61]),
    row(setup("paged", 8), reserved=300, p99_ms=[60, 66], tok_s=[100, 101]),
    row(setup("paged", 16), reserved=301, p99_ms=[60, 61], tok_s=[100, 101]),
    row(setup("virtual"), reserved=302, p99_ms=[60, 61], tok_s=[100, 101]),
]


def test_the_plot_is_well_formed_and_has_every_row() -> None:
    (panel,) = panels(ROWS)
    root = ElementTree.fromstring(svg(panel))
    found = [title.text for title in root.iter("title")]
    assert len(found) == 4
    assert found[1] == "paged 8: 300 MiB, p99 ITL 63 ms (60 to 66), 10 requests fit"
    (curve,) = panel.curves
    assert [mark.setup.block_size for mark in curve] == [8, 16]
    assert len(root.findall("polyline")) == 1


def test_an_axis_holds_its_values_and_its_ticks() -> None:
    for values in ([300.0, 301.0], [5.0, 5.0], [1.0, 1000.0], [0.0, 0.0]):
        axis = Axis(values)
        assert all(0 <= axis.at(value) <= 1 for value in values)
        ticks = axis.ticks()
        assert ticks
        assert all(0 <= axis.at(tick) <= 1 for tick in ticks)
        assert len(ticks) < 14
    assert Axis([1.0, 1000.0]).log
    assert not Axis([1.0, 3.0]).log


def test_without_matplotlib_it_says_why_there_is_no_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert write_png(ROWS, tmp_path / "plot.png") == "matplotlib is not installed (pip install 'octavo[plot]')"
    assert not (tmp_path / "plot.png").exists()


def test_with_matplotlib_there_is_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    assert write_png(ROWS, tmp_path / "plot.png") is None
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
