"""Which build of the native library this CPU runs. One shared object per instruction set; the best that fits is taken."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection, Mapping, Set
from pathlib import Path

from octavo.errors import ConfigError

VARIABLE = "OCTAVO_ISA"
_AVX512_VNNI = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
_AVX512 = _AVX512_VNNI | {"avx512_bf16"}
# Best first: the CPU flags, by their names in /proc/cpuinfo, that each one needs.
NEEDS: dict[str, frozenset[str]] = {
    "amx": frozenset(_AVX512 | {"amx_tile", "amx_bf16", "amx_int8"}),
    "avx512": frozenset(_AVX512),
    "avx512_vnni": frozenset(_AVX512_VNNI),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "baseline": frozenset(),
}


def built() -> dict[str, Path]:
    """The libraries that this installation has, by instruction set, best first. Empty where none was compiled."""
    # An editable install keeps them apart from the sources.
    folders = (Path(__file__).parent, Path(sysconfig.get_path("platlib"), "octavo", "native"))
    found = {}
    for name in NEEDS:
        for folder in folders:
            path = folder / f"liboctavo_{name}.so"
            if name not in found and path.is_file():
                found[name] = path
    return found


def choose(flags: Set[str], available: Collection[str], environment: Mapping[str, str] = os.environ) -> str:
    """The instruction set to use: what ``OCTAVO_ISA`` says, else the best that was built and that the CPU has.

    flags: the CPU's. Raises ConfigError where OCTAVO_ISA names what does not exist, was not built, or would crash here.
    """
    forced = environment.get(VARIABLE)
    if forced is None:
        return next(name for name in NEEDS if name in available and NEEDS[name] <= flags)
    if forced not in NEEDS:
        raise ConfigError(f'{VARIABLE} is "{forced}": {", ".join(reversed(NEEDS))} are accepted.')
    if missing := sorted(NEEDS[forced] - flags):
        raise ConfigError(f"{VARIABLE} is {forced}, but this CPU lacks {', '.join(missing)}.")
    if forced not in available:
        raise ConfigError(f"{VARIABLE} is {forced}, but this installation has {', '.join(available)} only.")
    return forced
