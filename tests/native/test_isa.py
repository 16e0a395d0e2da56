"""Which build of the native library is taken, and which are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo.errors import ConfigError
from octavo.native import isa

ALL = list(isa.NEEDS)


@pytest.mark.parametrize("name", ALL)
def test_the_best_that_the_cpu_has(name):
    assert isa.choose(isa.NEEDS[name], ALL, {}) == name


def test_the_best_that_was_built():
    assert isa.choose(isa.NEEDS["amx"], ["avx2", "baseline"], {}) == "avx2"
    assert isa.choose(frozenset({"neon"}), ["baseline"], {}) == "baseline"


def test_the_environment_decides():
    assert isa.choose(isa.NEEDS["amx"], ALL, {"OCTAVO_ISA": "baseline"}) == "baseline"
    assert isa.choose(isa.NEEDS["amx"], ALL, {"OCTAVO_ISA": "avx512"}) == "avx512"


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ConfigError, match='OCTAVO_ISA is "sse9": baseline, avx2, avx512_vnni, avx512, amx are accepted'):
        isa.choose(isa.NEEDS["amx"], ALL, {"OCTAVO_ISA": "sse9"})
    with pytest.raises(ConfigError, match="OCTAVO_ISA is amx, but this CPU lacks amx_bf16, amx_int8, amx_tile"):
        isa.choose(isa.NEEDS["avx512"], ALL, {"OCTAVO_ISA": "amx"})
    with pytest.raises(ConfigError, match="OCTAVO_ISA is avx512, but this installation has avx2, baseline only"):
        isa.choose(isa.NEEDS["avx512"], ["avx2", "baseline"], {"OCTAVO_ISA": "avx512"})


@pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
def test_the_command_line_says_so_too():
    command = [sys.executable, "-m", "octavo", "generate", "-p", "x", "--runner", "native", "--max-tokens", "1"]
    done = subprocess.run(command, env={**os.environ, "OCTAVO_ISA": "mmx"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith('octavo: OCTAVO_ISA is "mmx"')
