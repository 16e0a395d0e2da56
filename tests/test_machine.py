"""What the process may use, read from made-up /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo import machine

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal:       33554432 kB\nMemFree: 1 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8, 9, 10, 11})


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, [0, 1, 2, 3, 8, 9, 10, 11]),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, [0, 1, 2, 3, 8, 9, 10, 11]),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, [0, 1]),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, [0]),
        (
            {  # the tighter limit of a parent counts
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "700000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
            },
            [0, 1, 2],
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/c\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000",
            },
            [0, 1, 2, 3],
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            [0, 1, 2, 3, 8, 9, 10, 11],
        ),
        (
            {  # in a container: the path is the host's, the limit lies at the mount's root
                "proc/self/cgroup": "0::/docker/abc\n",
                "sys/fs/cgroup/cpu.max": "200000 100000",
            },
            [0, 1],
        ),
    ],
)
def test_cpus_follow_affinity_and_quota(tmp_path, files, expected):
    assert machine.allowed_cpus(tree(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 32 * GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 32 * GIB),
        ({"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/memory.max": f"{8 * GIB}\n"}, 8 * GIB),
        (
            {
                "proc/self/cgroup": "0::/x/y\n",
                "sys/fs/cgroup/x/y/memory.max": f"{8 * GIB}",
                "sys/fs/cgroup/x/memory.max": f"{2 * GIB}",
            },
            2 * GIB,
        ),
        ({"proc/self/cgroup": "3:memory:/m\n", "sys/fs/cgroup/memory/m/memory.limit_in_bytes": str(GIB)}, GIB),
        (
            {"proc/self/cgroup": "3:memory:/m\n", "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "9223372036854771712"},
            32 * GIB,
        ),
        ({"proc/self/cgroup": "3:memory:/host/path\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": str(3 * GIB)}, 3 * GIB),
    ],
)
def test_memory_follows_the_cgroup_and_the_ram(tmp_path, files, expected):
    assert machine.memory_limit(tree(tmp_path, files)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(2 * GIB, GIB // 2), (64 * GIB, 4 * GIB)])
def test_the_kv_cache_gets_a_quarter_and_at_most_4_gib(tmp_path, limit, expected):
    files = {"proc/meminfo": f"MemTotal: {limit // 1024} kB\n"}
    assert machine.default_kv_memory(tree(tmp_path, files)) == expected


def test_flags_are_those_of_the_first_cpu(tmp_path):
    text = "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert machine.cpu_flags(tree(tmp_path, {"proc/cpuinfo": text})) == {"fpu", "avx2", "avx512_bf16"}
    assert machine.cpu_flags(tmp_path / "nowhere") == frozenset()


def test_this_machine():
    assert machine.allowed_cpus()
    assert machine.memory_limit() > 0


def test_a_machine_is_described_by_what_this_process_may_use_and_by_no_name(tmp_path, eight_cpus):
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Example CPU @ 3GHz\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "300000 100000",
        "sys/fs/cgroup/memory.max": str(2 * GIB),
    }
    found = machine.describe(tree(tmp_path, files))
    assert (found["cpu"], found["cpus"], found["memory_bytes"]) == ("Example CPU @ 3GHz", 3, 2 * GIB)
    assert os.uname().nodename not in found.values()
