"""The worker pool: every item once, in the order of phases, whether threads spin, sleep or come late."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native.build import SOURCES, available

CHECK = Path(__file__).with_name("pool_check.cpp")
pytestmark = pytest.mark.skipif(not available(), reason="needs g++")


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_random_lists_of_phases(tmp_path, sanitizer):
    program = tmp_path / "check"
    command = ["g++", "-O1", "-std=c++17", "-pthread", CHECK, SOURCES / "pool.cpp", "-o", program]
    if subprocess.run([*command, f"-fsanitize={sanitizer}"], capture_output=True).returncode:
        subprocess.run(command, check=True)  # a compiler without this sanitizer
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
