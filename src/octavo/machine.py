"""What this process may use: CPUs and memory, by the affinity mask and the cgroup, not by what the host has."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

MAX_DEFAULT_KV_MEMORY = 4 * 2**30


def allowed_cpus(root: Path = Path("/")) -> list[int]:
    """The CPUs that this process may run on, by number; no more of them than the cgroup's CPU quota pays for, at least one."""
    cpus = sorted(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    return cpus if quota is None else cpus[: max(1, int(quota))]


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the least of the cgroup's limits and the machine's RAM."""
    limits = [_ram(root)]
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit():  # "max" is no limit, and so is version 1's number close to 2^63: RAM is below it
                limits.append(int(text))
    return min(limits)


def default_kv_memory(root: Path = Path("/")) -> int:
    """Bytes for keys and values where nothing was asked: 4 GiB or a quarter of ``memory_limit``, the smaller."""
    return min(MAX_DEFAULT_KV_MEMORY, memory_limit(root) // 4)


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """The instruction-set flags of the first CPU in /proc/cpuinfo ("avx512_bf16", "amx_bf16", ...)."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def copied_bytes_s(size: int = 32 * 2**20) -> float:
    """Bytes a second that one thread copies from memory to memory: the best of three copies of ``size`` bytes. About 30 ms."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begin)
    return size / min(seconds)


def describe(root: Path = Path("/")) -> dict[str, Any]:
    """What figures measured here depend on, for the heads of records and reports: ``cpu`` (the model's name), ``cpus`` (that this
    process may use), ``memory_bytes`` (that it may use), ``kernel``, ``python``. No name or address of the machine."""
    return {
        "cpu": _cpu_model(root),
        "cpus": len(allowed_cpus(root)),
        "memory_bytes": memory_limit(root),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_model(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()  # what 64-bit ARM kernels leave out


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time that the tightest cgroup grants; None where none limits it."""
    quotas = []
    for folder in _cgroups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2: "200000 100000" or "max 100000"
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")  # version 1: -1 is none
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroups(root: Path, controller: str) -> list[Path]:
    """The folders of the cgroups that hold this process, innermost first. A limit of any of them applies.

    /proc/self/cgroup has a line "0::/path" for version 2 and "4:cpu,cpuacct:/path" for each controller of version 1. In a
    container the path may be one of the host's that is not visible here; the mount's root then stands for it.
    """
    base = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = base / controller if controllers else base
        folder = top / path.lstrip("/")
        folders += [f for f in (folder, *folder.parents) if f == top or top in f.parents]
    return list(dict.fromkeys([*folders, base, base / controller]))


def _ram(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: Path) -> str:
    """The file's text, stripped; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
