"""The document, the table and the comparison of results whose figures are known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from octavo.bench.baseline import Baseline
from octavo.bench.clientload import ClientLoad
from octavo.bench.compare import compare, comparison_lines, pairs, read_results
from octavo.bench.goals import parse_goals
from octavo.bench.metrics import LATENCIES, RATES, STATISTICS
from octavo.bench.record import TIMEOUT, RequestRecord
from octavo.bench.report import Json, Result, document
from octavo.bench.run import KVPeak, Run
from octavo.bench.table import format_number, result_lines, summary_lines
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.errors import ConfigError
from tests.bench.test_metrics import record

REQUESTS = 20
CONFIG = {"title": "m, in this process", "summary": "paged layout", "load": {"title": "closed loop, 2 at once"}}


def run(pace: float = 1.0, more: tuple[RequestRecord, ...] = (), warning: bool = False) -> Run:
    """REQUESTS requests one after the other, their first tokens after 0.1 to 0.2 s and two more 0.05 s apart, times ``pace``."""
    records, at = [], 1000.0
    for i in range(REQUESTS):
        first = at + pace * (0.1 + 0.1 * i / REQUESTS)
        records.append(record(i, at, (first, first + 0.05 * pace, first + 0.1 * pace)))
        at = first + 0.1 * pace
    client = ClientLoad(0.9 if warning else 0.1, 0.0, None, False)
    return Run(
        records=[*records, *more],
        end=None,
        client=client,
        kv=KVPeak(reserved=2048, used=1024, wasted=512),
        cached=30,
        looked_up=60,
    )


def result(*runs: Run, label: str = "", name: str = "short") -> Json:
    requests = tuple(BenchRequest(i, (Segment(i, 10),), 3) for i in range(REQUESTS))
    made = Result(Workload(name, requests, 0, "Somewhere."), label, dict(CONFIG), parse_goals(["ttft:0.15"]), list(runs))
    return json.loads(json.dumps(made.json(), allow_nan=False))  # type: ignore[no-any-return]


def table(result: Json) -> str:
    """Its lines, each gap between columns one space."""
    return "\n".join(re.sub(" +", " ", line) for line in result_lines(result))


def test_the_document_has_the_fields_of_schema_1() -> None:
    whole = document("octavo bench short", [result(run())])
    assert {"schema", "command", "machine", "config", "suite", "metrics", "kv", "requests"} <= whole.keys()
    assert (whole["schema"], whole["command"], whole["suite"]) == (1, "octavo bench short", "short")
    for name in LATENCIES:
        assert set(whole["metrics"][name]) == set(STATISTICS)
    assert whole["metrics"].keys() >= {*RATES, "completed", "errors", "client"}
    assert whole["kv"] == {"reserved": 2048, "used": 1024, "wasted": 512, "scope": "run"}
    assert whole["machine"]["cpus"] >= 1


def test_a_request_in_the_document_can_be_followed() -> None:
    first, second, *_ = result(run())["requests"]
    assert first["chunk_s"] == [0.1, 0.15, 0.2]
    assert (first["ttft_s"], first["tpot_s"], first["e2e_s"], first["round"]) == (0.1, 0.05, 0.2, 0)
    assert second["intended_s"] == 0.2
    assert "chunk_tokens" not in first
    several = record(0, 1000.0, (1000.1, 1000.2), tokens=[2, 3], output_tokens=5)
    assert result(run(more=(several,)))["requests"][-1]["chunk_tokens"] == [2, 3]


def test_several_results_are_runs() -> None:
    whole = document("octavo bench all", [result(run()), result(run(), name="long")])
    assert [one["suite"] for one in whole["runs"]] == ["short", "long"]
    assert "metrics" not in whole


def test_rounds_give_medians_of_latencies_and_rates_and_sums_of_counts() -> None:
    failed = record(99, 1000.0, error=TIMEOUT, ended=1001.0)
    made = result(run(1.0), run(3.0, more=(failed,)), run(2.0))
    alone = [result(run(pace))["metrics"] for pace in (1.0, 2.0, 3.0)]
    metrics = made["metrics"]
    assert metrics["ttft_s"] == pytest.approx(alone[1]["ttft_s"])
    assert metrics["output_tok_s"] == pytest.approx(alone[1]["output_tok_s"])
    assert metrics["completed"] == 3 * REQUESTS
    assert metrics["errors"] == {"timeout": 1}
    assert metrics["duration_s"] == pytest.approx(sum(m["duration_s"] for m in alone))
    assert metrics["goodput"]["requests"] == sum(m["goodput"]["requests"] for m in alone)
    assert [one["metrics"]["ttft_s"]["p50"] for one in made["rounds"]] == pytest.approx(
        [alone[i]["ttft_s"]["p50"] for i in (0, 2, 1)]
    )
    assert {r["round"] for r in made["requests"]} == {0, 1, 2}


def test_a_table_says_what_was_run_and_every_figure_with_its_unit() -> None:
    text = table(result(run()))
    assert text.startswith("short on m, in this process\n20 requests, 200 prompt and 60 output tokens; closed loop, 2 at once; ")
    assert "paged layout" in text
    assert "TTFT, time to first token ms 147.5 " in text  # 0.1 to 0.195 in steps of 0.005
    assert "E2E, whole request s 0.247 " in text or "E2E, whole request s 0.248 " in text
    assert "20 completed, 0 failed" in text
    assert "2 KiB reserved, 1 KiB used, 512 bytes wasted" in text
    assert "50.0% of the prompt tokens found" in text
    assert "ICL" not in text  # the same as ITL here


def test_a_table_says_what_makes_its_figures_doubtful() -> None:
    odd = (
        record(90, 1000.0, error=TIMEOUT, ended=1001.0, message="It took longer than 1 s."),
        record(91, 1000.0, (1000.5,), output_tokens=None, token_source="chunks", stated=False, asked_tokens=5),
        record(92, 1000.0, (1000.5, 1000.6), output_tokens=50, stated=False),
    )
    text = table(result(run(more=odd, warning=True)))
    assert "22 completed, 1 failed: 1 timeout" in text
    assert "timeout: It took longer than 1 s." in text
    assert "1 ended with fewer tokens" in text
    assert "Output tokens of 1 request are chunks" in text
    assert "the server does not say how many each has" in text
    assert "WARNING: The client is the bottleneck: it used 90% of a core" in text


def test_a_table_of_nothing_has_dashes() -> None:
    empty = Run(records=[record(0, 5.0, error=TIMEOUT, ended=5.0)], end=None, client=ClientLoad(None, None, None, False))
    text = table(result(empty))
    assert "TTFT, time to first token ms - " in text


def test_a_summary_has_a_row_for_each_result() -> None:
    lines = summary_lines([result(run(), label="a=1"), result(run(2.0), label="a=2")])
    assert len(lines) == 4
    assert lines[2].startswith("short a=1")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.12345, "0.123"), (12.345, "12.35"), (123.45, "123.5"), (1234.5, "1234")]
)
def test_numbers_have_about_four_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text


def verdicts(base: Json, other: Json) -> dict[str, str]:
    return {f"{row.metric} {row.statistic}".strip(): row.verdict for row in compare(base, other).rows}


def test_rounds_tell_noise_from_difference() -> None:
    base = result(*(run(pace) for pace in (1.0, 1.01, 0.99, 1.02)))
    same = verdicts(base, result(*(run(pace) for pace in (1.005, 0.995, 1.015, 0.99))))
    assert set(same.values()) == {"noise"}
    slower = verdicts(base, result(*(run(pace) for pace in (1.1, 1.11, 1.09, 1.12))))
    assert set(slower.values()) == {"worse"}
    faster = verdicts(base, result(*(run(pace) for pace in (0.9, 0.91, 0.89, 0.92))))
    assert set(faster.values()) == {"better"}


def test_single_rounds_are_called_different_only_beyond_what_machines_drift() -> None:
    base = result(run())
    assert set(verdicts(base, result(run(1.05))).values()) == {"noise"}
    assert set(verdicts(base, result(run(1.3))).values()) == {"worse"}
    assert "--repeat" in compare(base, result(run(1.3))).test


def test_a_comparison_says_what_is_unlike() -> None:
    failed = record(99, 1000.0, error=TIMEOUT, ended=1001.0)
    other = result(run(more=(failed,), warning=True))
    other["workload"]["seed"] = 1
    other["machine"] = {"cpus": 1}
    text = "\n".join(comparison_lines(compare(result(run()) | {"machine": {"cpus": 2}}, other)))
    assert "The workloads differ" in text
    assert "The machines differ in cpus." in text
    assert "In other, 1 request failed" in text
    assert "the client was the bottleneck" in text


def test_what_has_no_value_is_not_compared() -> None:
    alone = result(Run(records=[record(0, 0.0, (1.0,))], end=None, client=ClientLoad(None, None, None, True)))
    found = verdicts(alone, alone)
    assert found["itl_s p50"] == "-"
    assert found["ttft_s p50"] == "noise"


def test_results_are_paired_by_suite_and_label() -> None:
    a = [result(run(), label="x=1"), result(run(), label="x=2"), result(run(), name="long")]
    b = [result(run(), label="x=2"), result(run(), name="long", label="y"), result(run(), name="mixed")]
    assert [(one["label"], other["label"]) for one, other in pairs(a, b)] == [("x=2", "x=2"), ("", "y")]


def test_documents_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document("c", [result(run()), result(run(), name="long")])))
    assert [one["suite"] for one in read_results(file)] == ["short", "long"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ('{"schema": 2}', "schema 2"),
        ("{}", "no result of octavo bench"),
        ("[]", "no result of octavo bench"),
        ('{"schema": 1, "machine": {}, "runs": [{"suite": "x"}]}', "no result of octavo bench"),
        (
            '{"schema": 1, "machine": {}, "suite": "x", "label": "", "config": {}, "workload": {}, "requests": [], "rounds": []}',
            "no result",
        ),
    ],
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_results(file)


def test_a_baseline_keeps_what_it_lacks_and_never_writes_over(tmp_path: Path) -> None:
    baseline = Baseline(tmp_path / "kept")
    assert baseline.results("short") == []
    baseline.keep("short", "c", [result(run())])
    assert [one["suite"] for one in baseline.results("short")] == ["short"]
    with pytest.raises(FileExistsError):
        baseline.keep("short", "c", [result(run())])
    assert baseline.path("a/../b").parent == tmp_path / "kept"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder"):
        Baseline(tmp_path / "file")
