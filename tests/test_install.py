"""Installing where there is no C++ compiler: the package is complete but for the native library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = {name: shutil.which(name) for name in ("cmake", "ninja")}


@pytest.mark.skipif(not all(TOOLS.values()) or find_spec("scikit_build_core") is None, reason="needs cmake and scikit-build-core")
def test_a_wheel_is_built_without_a_compiler(tmp_path):
    source, tools = tmp_path / "source", tmp_path / "tools"
    source.mkdir()
    tools.mkdir()
    for name in ("pyproject.toml", "README.md", "CMakeLists.txt"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "csrc"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, path in TOOLS.items():
        (tools / name).symlink_to(path)
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    build = [sys.executable, "-c", f"import scikit_build_core.build as b; b.build_wheel({str(tmp_path)!r})"]
    done = subprocess.run(build, cwd=source, env={**environment, "PATH": str(tools)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "octavo/native/library.py" in names
    assert "octavo/runner/torch_runner.py" in names
    assert not [name for name in names if name.endswith(".so")]
