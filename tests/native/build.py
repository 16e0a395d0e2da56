"""Builds of the native library for tests: one for each instruction set that this machine runs, and one that emulates AMX."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "csrc"
COMMON = ["-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wno-maybe-uninitialized", "-pthread"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512_VNNI = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
AVX512 = [*AVX512_VNNI, "-mavx512bf16"]
FLAGS = {
    "baseline": [],
    "avx2": AVX2,
    "avx512_vnni": AVX512_VNNI,
    "avx512": AVX512,
    "amx-emulated": [*AVX512_VNNI, "-DOCTAVO_EMULATE_AMX"],
    "amx": [*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
}
NEEDS = {
    "baseline": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512_vnni": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"},
    "amx-emulated": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    "amx": {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"},
}


def cpu_flags() -> set[str]:
    """This machine's CPU flags by Linux's names; empty where /proc/cpuinfo has none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def available() -> list[str]:
    """The builds that can run here; none without a compiler."""
    if shutil.which("g++") is None:
        return []
    return [isa for isa, needs in NEEDS.items() if needs <= cpu_flags()]


def _with_headers(files: list[Path]) -> list[Path]:
    """The files and every header of ours that they include, directly or not."""
    found = dict.fromkeys(files)
    waiting = list(files)
    while waiting:
        for name in re.findall(r'#include "(.+?)"', waiting.pop().read_text()):
            header = SOURCES / name
            if header not in found:
                found[header] = None
                waiting.append(header)
    return sorted(found)


@functools.cache
def library(isa: str, prefixes: tuple[str, ...]) -> ctypes.CDLL:
    """The sources whose names begin with one of ``prefixes``, built for ``isa``; kept between runs under a hash of their text."""
    files = sorted(path for path in SOURCES.glob("*.cpp") if path.name.startswith(prefixes))
    digest = hashlib.sha256(repr((isa, FLAGS[isa], COMMON, [path.name for path in files])).encode())
    for path in _with_headers(files):
        digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"octavo-native-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"{isa}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            objects = [Path(work) / f"{path.stem}.o" for path in files]
            compile_one = ["g++", *COMMON, *FLAGS[isa], f'-DOCTAVO_ISA_NAME="{isa}"', "-c"]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                commands = [[*compile_one, path, "-o", part] for path, part in zip(files, objects, strict=True)]
                list(pool.map(functools.partial(subprocess.run, check=True), commands))
            built = Path(work) / target.name
            subprocess.run(["g++", "-shared", "-pthread", *objects, "-o", built], check=True)
            built.replace(target)
    return ctypes.CDLL(str(target))
