"""Which element type weights and activations get."""

from __future__ import annotations

from collections.abc import Set

from octavo.machine import cpu_flags

HARDWARE = {"bfloat16": {"avx512_bf16", "amx_bf16"}, "float16": {"avx512_fp16", "amx_fp16"}}  # any one of them is enough


def resolve_dtype(setting: str, checkpoint_dtype: str, flags: Set[str] | None = None) -> str:
    """ "float32", "bfloat16" or "float16": the setting itself, or for "auto" what this CPU multiplies in hardware.

    auto: the checkpoint's own 16-bit type where the CPU has it; otherwise, for a 16-bit checkpoint, bfloat16 where the CPU has
    that; otherwise float32, which every 16-bit value fits in. A float32 checkpoint stays float32.
    flags: the CPU's, by their names in /proc/cpuinfo; None: this machine's.
    """
    if setting != "auto":
        return setting
    if checkpoint_dtype == "float32":
        return "float32"
    flags = cpu_flags() if flags is None else flags
    for dtype in (checkpoint_dtype, "bfloat16"):
        if HARDWARE.get(dtype, set()) & flags:
            return dtype
    return "float32"
