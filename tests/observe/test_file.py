"""A record on disk: what is written and when, and disks that are slow, full or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.observe import file as module
from octavo.observe.file import RecordFile
from octavo.observe.read import read_record
from tests.fake_engine import fake_engine, request, run

LIMIT_S = 20


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def missing(lines: int) -> bytes:
    return b"missing %d" % lines


def test_lines_are_written_in_order_also_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "record"
    file = RecordFile(str(path))
    for line in (b"one", b"two"):
        file.put(line, missing)
    until(lambda: path.read_bytes() == b"one\ntwo\n")
    file.put(b"three", missing)
    file.close()
    file.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_file_that_nobody_closes_is_closed_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "record"
    file = RecordFile(str(path))
    file.put(b"one", missing)
    del file
    assert path.read_bytes() == b"one\n"


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_text("an older record, and a longer one")
    RecordFile(str(path)).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize(("path", "why"), [("no/such/folder/record", "No such file or directory"), (".", "Is a directory")])
def test_a_path_that_cannot_be_written_is_refused_in_a_sentence(path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^record is {path}: it cannot be written \({why}\)\.$"):
        RecordFile(path)
    with pytest.raises(ConfigError, match="record is '-': the path of a file is accepted"):
        RecordFile("-")


def test_lines_that_a_slow_disk_does_not_take_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINES", 2)
    monkeypatch.setattr(module, "FLUSH_S", 3600.0)
    path = tmp_path / "record"
    file = RecordFile(str(path))
    for number in range(5):
        file.put(b"%d" % number, missing)
    file._writer._write()
    file.put(b"5", missing)
    file._writer._write()
    file.put(b"6", missing)
    file.close()
    assert path.read_bytes() == b"0\n1\nmissing 3\n5\n6\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_once_and_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    file = RecordFile("/dev/full")
    for _ in range(3):
        file.put(b"line", missing)
    until(lambda: not file._lines)
    file.put(b"line", missing)
    file.close()
    assert capfd.readouterr().err == "octavo: the record /dev/full ends here: No space left on device.\n"


CRASH = """
import os, sys, time
from octavo.observe.clock import RealClock
from octavo.observe.file import RecordFile
from octavo.observe.recorder import Recorder
from tests.fake_engine import fake_engine, request
core = fake_engine(recorder=Recorder(RealClock(), RecordFile(sys.argv[1])))
core.add(request("a", [1, 2, 3], max_tokens=200))
for _ in range(20):
    core.step()
print("stepped", flush=True)
time.sleep(60)
"""


def test_what_was_recorded_survives_the_engine_s_sudden_death(tmp_path: Path) -> None:
    path = tmp_path / "record"
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", CRASH, str(path)], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    assert process.stdout.readline() == b"stepped\n"
    until(lambda: path.read_bytes().count(b'\n["step"') == 20)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)
    found = read_record(path)
    assert [step.step for step in found.steps] == list(range(1, 21))
    assert found.requests["a"].finished is None


def test_file_and_window_tell_the_same(tmp_path: Path) -> None:
    from octavo.observe.clock import RealClock
    from octavo.observe.recorder import Recorder

    path = tmp_path / "record"
    core = fake_engine(recorder=Recorder(RealClock(), RecordFile(str(path))))
    for i in range(5):
        core.add(request(f"r{i}", [1, 2, 3], max_tokens=1 + i))
    run(core)
    window, _ = read_record(core.window(seconds=3600)), core.close()
    file = read_record(path)
    assert file.steps == window.steps
    assert file.requests == window.requests
    assert (file.damage, file.header.window) == ([], None)
