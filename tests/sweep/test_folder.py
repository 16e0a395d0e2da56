"""The run directory: what was put is there, and nobody goes on with another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.sweep import folder as folder_module
from octavo.sweep.folder import HEAD, Folder

ASKED = {"block_sizes": [8, 16], "repeat": 3, "settings": {"model": "tiny"}}


def test_what_was_put_is_there_for_the_next_one(tmp_path: Path) -> None:
    first = Folder(tmp_path / "run", ASKED)
    assert not first.began
    assert first.get("points/a/round-1.json") is None
    first.put("points/a/round-1.json", {"x": 1.5})
    first.close()
    second = Folder(tmp_path / "run", ASKED)
    assert second.began
    assert second.get("points/a/round-1.json") == {"x": 1.5}
    assert [path.name for path in (tmp_path / "run/points/a").iterdir()] == ["round-1.json"]  # nothing half done beside it
    second.close()


def test_other_settings_are_refused_in_words(tmp_path: Path) -> None:
    Folder(tmp_path, ASKED).close()
    with pytest.raises(ConfigError) as refused:
        Folder(tmp_path, {"block_sizes": [8, 32], "repeat": 3, "settings": {"model": "tiny", "threads": 2}})
    assert "begun with block_sizes=8,16, now 8,32; threads=its default, now 2:" in str(refused.value)
    Folder(tmp_path, ASKED).close()  # and the refusal has left no lock


def test_another_machine_and_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Folder(tmp_path, ASKED).close()
    described = folder_module.machine.describe()
    monkeypatch.setattr(folder_module.machine, "describe", lambda: described | {"cpus": 96, "kernel": "another"})
    monkeypatch.setattr(folder_module, "__version__", "99")
    with pytest.raises(ConfigError) as refused:
        Folder(tmp_path, ASKED)
    assert f"cpus={described['cpus']}, now 96; octavo=" in str(refused.value)
    assert "kernel" not in str(refused.value)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear reader")
    with pytest.raises(ConfigError, match="it has files, and none of a sweep"):
        Folder(tmp_path, ASKED)
    (tmp_path / HEAD).write_text(json.dumps({"format": "something"}))
    with pytest.raises(ConfigError, match="is of no sweep that this version"):
        Folder(tmp_path, ASKED)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    first = Folder(tmp_path, ASKED)
    with pytest.raises(ConfigError, match="another sweep is running there"):
        Folder(tmp_path, ASKED)
    first.close()
    Folder(tmp_path, ASKED).close()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    kept = Folder(tmp_path, ASKED)
    kept.put("a.json", {})
    (tmp_path / "a.json").write_text('{"x": ')
    with pytest.raises(ConfigError, match=r"a\.json is no JSON .*delete it, and it is measured again"):
        kept.get("a.json")
    kept.close()
