"""Reading records, whole and damaged."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.errors import RecordError
from octavo.observe.read import read_record
from octavo.observe.record import Dropped, StepRecord
from tests.fake_engine import fake_engine, request, run


def make() -> bytes:
    core = fake_engine()
    for i in range(4):
        core.add(request(f"r{i}", [1, 2, 3], max_tokens=2 + i))
    run(core)
    return core.window(seconds=3600)


WHOLE = make()
HEAD = WHOLE.index(b"\n") + 1
STEPS = 5


def test_a_whole_record_has_no_damage() -> None:
    found = read_record(WHOLE)
    assert (len(found.steps), len(found.requests), found.damage, found.dropped) == (STEPS, 4, [], 0)
    assert found.header.step_fields == StepRecord.__struct_fields__
    assert (found.begin, found.end) == (found.steps[0].start, found.steps[-1].end)
    assert found.unix(found.header.monotonic + 1.5) == found.header.unix + 1.5


def test_a_column_is_a_field_or_property_of_every_step() -> None:
    found = read_record(WHOLE)
    assert found.column("step").tolist() == [1, 2, 3, 4, 5]
    assert np.array_equal(found.column("total_s"), [step.end - step.start for step in found.steps])
    assert np.isnan(found.column("busy_s")).all()  # the fake runner cannot tell


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(WHOLE) - HEAD))
@example(WHOLE.index(b"\n", HEAD) - HEAD)  # all of a line but its break
def test_a_record_that_was_cut_off_is_read_up_to_there(rest: int) -> None:
    cut = WHOLE[: HEAD + rest]
    found = read_record(cut)
    assert len(found.steps) == sum(line.startswith(b'["step"') and line.endswith(b"]") for line in cut.splitlines())
    assert bool(found.damage) == (not cut.endswith(b"\n"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_is_ever_more_than_a_sentence(data: st.DataObject) -> None:
    broken = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=20))
    try:
        found = read_record(bytes(broken))
    except RecordError:
        return
    assert len(found.steps) <= STEPS + 1


@pytest.mark.parametrize(
    ("line", "damaged"),
    [
        (b"", False),
        (b'["step",1,"x"]', True),
        (b'["step"]', True),
        (b'["of a newer octavo",1,2]', False),
        (b"{}", True),
        (b"[]", True),
        (b"7", True),
        (b"[" * 100_000, True),
        (b"\xff\xfe\x00", True),
        (b'["finished",1.0,"r0",1,"length"', True),
    ],
)
def test_one_line_spoils_no_other(line: bytes, damaged: bool) -> None:
    found = read_record(WHOLE[:HEAD] + line + b"\n" + WHOLE[HEAD:])
    assert len(found.steps) == STEPS
    assert [sentence.split(" of ")[0] for sentence in found.damage] == ["line 2"] * damaged


def test_values_that_a_newer_octavo_adds_are_passed_over() -> None:
    found = read_record(WHOLE.replace(b"]\n", b',"new"]\n'))
    assert (len(found.steps), len(found.requests), found.damage) == (STEPS, 4, [])


def test_damage_is_counted_rather_than_told_without_end() -> None:
    damage = read_record(WHOLE + b"nonsense\n" * 1000).damage
    assert len(damage) == 21
    assert damage[-1] == "980 more lines of the record cannot be read."


def test_what_the_engine_could_not_write_is_told() -> None:
    assert read_record(WHOLE + msgspec.json.encode(Dropped(1.0, 17)) + b"\n").dropped == 17


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is no record of octavo: its first line is no header of one."),
        (b'{"schema": 1}\n', "is no record of octavo: its first line is no header of one."),
        (b"\x1f\x8b", "is no record of octavo: its first line is no header of one."),
        (WHOLE.replace(b'"schema":1', b'"schema":2', 1), "is a record of schema 2: this octavo reads schema 1."),
        (WHOLE.replace(b'"threads":1', b'"threads":"x"', 1), "has a header that cannot be read: Expected `int`"),
    ],
)
def test_what_is_no_record_is_refused_in_a_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(RecordError) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path} {sentence}")


def test_a_file_that_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read: No such file or directory"):
        read_record(tmp_path / "nothing")


def test_lines_in_any_order_give_steps_in_order() -> None:
    head, *lines = WHOLE.splitlines(keepends=True)
    found = read_record(head + b"".join(reversed(lines)))
    assert [step.step for step in found.steps] == [1, 2, 3, 4, 5]
    assert not math.isnan(found.column("end")[-1])
