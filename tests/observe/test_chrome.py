"""The exported trace: Chrome's format, what nests in what, and that times are those of the record."""

from __future__ import annotations

import gc
import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from octavo.cli import main
from octavo.observe.chrome import DEVICE, ENGINE, GARBAGE, KV_MANAGER, REQUESTS, SCHEDULER
from octavo.observe.clock import RealClock
from octavo.observe.file import RecordFile
from octavo.observe.read import Record, read_record
from octavo.observe.recorder import Recorder
from tests.fake_engine import fake_engine, request, run

SCHEMA = json.loads(Path(__file__).with_name("chrome_trace.schema.json").read_text())
ROUNDING = 0.0011  # microseconds: three decimals, and what floating point makes of them

Event = dict[str, Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record with everything in it: preemption, an abort, prefixes, a pause, a collection."""
    path = tmp_path_factory.mktemp("record") / "run.jsonl"
    recorder = Recorder(RealClock(), RecordFile(str(path)))
    core = fake_engine(capacity=96, block_size=8, slots=4, max_model_len=96, prefix_caching=True, recorder=recorder)
    for i in range(8):
        core.add(request(f"r{i}", [5, 6, 7] * (3 + i), max_tokens=30))
    for _ in range(5):
        core.step()
    core.abort(["r7", "r0"])
    gc.collect()
    run(core)
    core.add(request("late", [1, 2], max_tokens=3))
    core.step()
    core.text_time("r1", 0.001)
    core.close()  # "late" is dropped
    return path


@pytest.fixture(scope="module")
def record(path: Path) -> Record:
    return read_record(path)


@pytest.fixture(scope="module")
def trace(path: Path) -> dict[str, Any]:
    assert main(["trace", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.with_name("run.trace.json").read_bytes())
    return found


@pytest.fixture(scope="module")
def tracks(trace: dict[str, Any]) -> dict[tuple[int, int], list[Event]]:
    """Spans by process and thread, in the order of the file."""
    return spans(trace)


def test_it_is_chrome_s_format(trace: dict[str, Any]) -> None:
    jsonschema.validate(trace, SCHEMA)


def test_every_track_and_process_has_a_name(trace: dict[str, Any], tracks: dict[tuple[int, int], list[Event]]) -> None:
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named >= set(tracks)
    assert {e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"} == {ENGINE, REQUESTS}
    assert {(ENGINE, tid) for tid in (SCHEDULER, KV_MANAGER, DEVICE, GARBAGE)} <= set(tracks)


def spans(trace: dict[str, Any]) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def test_spans_of_a_track_are_in_order_and_nest(tracks: dict[tuple[int, int], list[Event]]) -> None:
    in_order_and_nested(tracks)


def test_parts_of_overlapped_steps_alternate_in_the_engine_s_thread(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(RealClock(), RecordFile(str(path)))
    core = fake_engine(capacity=96, block_size=8, slots=4, max_model_len=96, recorder=recorder, overlapped=True)
    for i in range(6):
        core.add(request(f"r{i}", [5, 6, 7] * (3 + i), max_tokens=30))
    run(core)
    core.close()
    assert main(["trace", str(path)]) == 0
    trace = json.loads(path.with_name("run.trace.json").read_bytes())
    jsonschema.validate(trace, SCHEMA)
    tracks = spans(trace)
    in_order_and_nested(tracks)
    names = [e["name"] for e in tracks[ENGINE, SCHEDULER] if e["name"].startswith("plan") or e["name"] == "commit"]
    assert names[:4] == ["plan step 1", "plan step 2", "commit", "plan step 3"]


def in_order_and_nested(tracks: dict[tuple[int, int], list[Event]]) -> None:
    for events in tracks.values():
        begins = [event["ts"] for event in events]
        assert begins == sorted(begins)
        open_until: list[float] = []
        for event in events:
            while open_until and open_until[-1] <= event["ts"] + ROUNDING:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + ROUNDING, event
            open_until.append(end)


def test_steps_are_where_the_record_has_them_in_microseconds(record: Record, tracks: dict[tuple[int, int], list[Event]]) -> None:
    steps = [event for event in tracks[ENGINE, SCHEDULER] if event["name"].startswith("step ")]
    assert [event["args"]["step"] for event in steps] == [step.step for step in record.steps]
    first = record.steps[0]
    for event, step in zip(steps, record.steps, strict=True):
        assert event["ts"] - steps[0]["ts"] == pytest.approx((step.start - first.start) * 1e6, abs=0.01)
        assert event["dur"] == pytest.approx(step.total_s * 1e6, abs=0.01)


def test_the_engine_s_time_is_shown_whole(record: Record, tracks: dict[tuple[int, int], list[Event]]) -> None:
    """Steps and what lies between them leave no gap: whoever looks for who fills one finds a name."""
    inside = ("plan", "launch", "waiting for the device", "commit")
    outer = [event for event in tracks[ENGINE, SCHEDULER] if event["name"] not in inside]
    for before, after in pairwise(outer):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=0.01)
    assert {event["name"] for event in outer if not event["name"].startswith("step ")} == {"waiting for work", "messages"}


def test_what_the_kv_cache_did_is_shown(record: Record, tracks: dict[tuple[int, int], list[Event]]) -> None:
    spent: dict[str, float] = defaultdict(float)
    for event in tracks[ENGINE, KV_MANAGER]:
        spent[event["name"]] += event["dur"]
    for name in ("allocate", "extend", "evict", "match", "table", "view"):
        assert spent[name] == pytest.approx(record.column(f"{name}_s").sum() * 1e6, abs=1.0), name


def test_requests_have_their_phases(record: Record, tracks: dict[tuple[int, int], list[Event]]) -> None:
    lanes = [events for (pid, _), events in tracks.items() if pid == REQUESTS]
    phases: dict[str, list[str]] = {}
    for events in lanes:
        name = ""
        for event in events:
            if event["name"].startswith("request "):
                name = event["name"].removeprefix("request ")
                phases[name] = []
            else:
                phases[name].append(event["name"])
    assert set(phases) == set(record.requests)
    assert phases["r1"] == ["queued", "prefill", "decode"]
    assert phases["r7"] == ["queued"]
    preempted = next(life for life in record.requests.values() if life.preempted)
    assert phases[preempted.id][-2:] == ["preempted", "resumed"]
    assert len(lanes) < len(phases)  # a lane is used again


def test_counters_are_those_of_the_steps(record: Record, trace: dict[str, Any]) -> None:
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    sequences = [event["args"]["running"] for event in counters if event["name"] == "batch, sequences"]
    assert sequences == record.column("sequences").tolist()
    used = [event["args"]["used"] for event in counters if event["name"] == "KV cache, MB"]
    assert used == [step.kv_used * 8 / 1e6 for step in record.steps]


def test_output_goes_where_it_is_told(path: Path, trace: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    packed = path.with_name("packed.json.gz")
    assert main(["trace", str(path), "-o", str(packed)]) == 0
    assert json.loads(gzip.decompress(packed.read_bytes())) == trace
    capfdbinary.readouterr()
    assert main(["trace", str(path), "-o", "-"]) == 0
    out, err = capfdbinary.readouterr()
    assert json.loads(out) == trace
    assert err.startswith(b"octavo: ")


def test_what_cannot_be_read_or_written_is_said(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(path.read_bytes()[:-5])
    assert main(["trace", str(cut)]) == 0
    assert "was cut off, or is still being written." in capsys.readouterr().err
    assert json.loads((tmp_path / "cut.trace.json").read_bytes())["traceEvents"]
    assert main(["trace", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.endswith("nothing cannot be read: No such file or directory.\n")
    assert main(["trace", str(path), "-o", str(tmp_path / "no" / "folder")]) == 1
    assert "cannot be written: No such file or directory." in capsys.readouterr().err


def test_a_profile_of_another_run_is_left_out_with_a_word(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.jsonl").write_bytes(path.read_bytes())
    profile = tmp_path / "run.profile.json"
    for text, sentence in (
        ("{", "is no profile of octavo's"),
        ("[]", "is no profile of octavo's"),
        (
            '{"octavo_clocks": {"monotonic": 1, "unix": 1}, "baseTimeNanoseconds": 0, "traceEvents": [{"ts": "x"}]}',
            "is no profile",
        ),
        ('{"octavo_clocks": {"monotonic": 1, "unix": 1}, "baseTimeNanoseconds": 0, "traceEvents": []}', "is of another run"),
    ):
        profile.write_text(text)
        assert main(["trace", str(tmp_path / "run.jsonl")]) == 0
        assert sentence in capsys.readouterr().err


def test_an_empty_record_is_a_trace_without_spans(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(fake_engine().window(seconds=1))
    assert main(["trace", str(path)]) == 0
    found = json.loads((tmp_path / "empty.trace.json").read_bytes())
    jsonschema.validate(found, SCHEMA)
