"""Library: the compiled library, loaded with ctypes. Structures and signatures mirror csrc/api.cpp and the headers it includes.

ctypes releases the GIL while a function of the library runs.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from octavo import machine
from octavo.errors import ConfigError
from octavo.native import isa

ABI_VERSION = 3
MAX_SEGMENTS = 8


class Epilogue(IntEnum):
    """What a linear layer does with its result (csrc/linear.h)."""

    STORE = 0
    ADD = 1
    SILU = 2
    GELU = 3


class Format(IntEnum):
    """What a buffer's rows hold (csrc/program.h)."""

    FLOAT32 = 0
    BF16 = 1
    BLOCKS = 2


# Element types, by GGML's numbers (csrc/weight.h), and values of a row that belong together.
KIND_NUMBERS = {"F32": 0, "F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}


class CWeight(Structure):
    """csrc/weight.h: Weight."""

    _fields_ = (("kind", c_int32), ("gated", c_bool), ("n", c_int), ("k", c_int), ("data", c_void_p))


class CSegment(Structure):
    """csrc/weight.h: Segment."""

    _fields_ = (("rows", c_void_p), ("row_bytes", c_size_t), ("n", c_int), ("kind", c_int32))


class CPackArgs(Structure):
    """csrc/weight.h: PackArgs."""

    _fields_ = (
        ("weight", CWeight),
        ("segments", CSegment * MAX_SEGMENTS),
        ("segment_count", c_int),
        ("source_k", c_int),
        ("data", c_void_p),
    )


class CProgramSpec(Structure):
    """csrc/program.h: ProgramSpec."""

    _fields_ = (
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("layers", c_int32),
        ("vocabulary", c_int32),
        ("slots", c_int32),
        ("max_tokens", c_int32),
        ("max_positions", c_int32),
        ("kv_kind", c_int32),
        ("turns", c_void_p),
    )


class CAttentionShape(Structure):
    """csrc/attention.h: AttentionShape."""

    _fields_ = (("heads", c_int), ("kv_heads", c_int), ("head_dim", c_int), ("kind", c_int32))


class COpened(Structure):
    """csrc/step.h: Opened."""

    _fields_ = (
        ("slot", c_int32),
        ("top_k", c_int32),
        ("temperature", c_float),
        ("unused", c_int32),
        ("top_p", c_double),
        ("seed", c_uint64),
        ("drawn", c_uint64),
    )


class CMove(Structure):
    """csrc/elementwise.h: Move."""

    _fields_ = (("source", c_int64), ("target", c_int64), ("tokens", c_int64))


class CBatch(Structure):
    """csrc/step.h: Batch."""

    _fields_ = (
        ("rows", c_void_p),
        ("tokens", c_void_p),
        ("opened", c_void_p),
        ("moves", c_void_p),
        ("table", c_void_p),
        ("run", c_void_p),
        ("arena", c_void_p),
        ("arena_tokens", c_int64),
        ("row_count", c_int32),
        ("token_count", c_int32),
        ("opened_count", c_int32),
        ("move_count", c_int32),
        ("table_width", c_int32),
        ("unused", c_int32),
        ("logits", c_void_p),
        ("sampled", c_void_p),
    )


class CStepTimes(Structure):
    """csrc/program.h: StepTimes."""

    _fields_ = (
        ("total_s", c_double),
        ("sample_s", c_double),
        ("busy_s", c_double),
        ("ticks_per_s", c_double),
        ("attention_s", c_double),
        ("kv_read_bytes", c_int64),
    )


class CSampling(Structure):
    """csrc/sample.h: Sampling."""

    _fields_ = (("temperature", c_float), ("top_p", c_double), ("top_k", c_int32), ("seed", c_uint64), ("drawn", c_uint64))


# name: (result, arguments). A result of c_char_p is None, or why the call failed.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "octavo_abi_version": (c_int, []),
    "octavo_isa": (c_char_p, []),
    "octavo_start": (c_char_p, []),
    "octavo_weight_bytes": (c_size_t, [POINTER(CWeight)]),
    "octavo_weight_panels": (c_int, [POINTER(CWeight)]),
    "octavo_pack_bias": (None, [POINTER(CWeight), c_void_p, c_void_p]),
    "octavo_attention_error": (c_char_p, [POINTER(CAttentionShape)]),
    "octavo_rope_turns": (None, [c_void_p, c_int, c_int, c_void_p]),
    "octavo_pool_new": (c_void_p, [c_void_p, c_int]),
    "octavo_pool_free": (None, [c_void_p]),
    "octavo_pool_pack": (c_char_p, [c_void_p, POINTER(CPackArgs)]),
    "octavo_program_new": (c_void_p, [c_void_p, POINTER(CProgramSpec)]),
    "octavo_program_free": (None, [c_void_p]),
    "octavo_program_buffer": (c_int, [c_void_p, c_int, c_int]),
    "octavo_program_embed": (c_char_p, [c_void_p, POINTER(CWeight), c_float, c_int]),
    "octavo_program_norm": (c_char_p, [c_void_p, c_int, c_int, c_void_p, c_void_p, c_float, c_int, c_int]),
    "octavo_program_linear": (c_char_p, [c_void_p, POINTER(CWeight), c_void_p, c_int, c_int, c_int, c_int]),
    "octavo_program_quantize": (c_char_p, [c_void_p, c_int, c_int]),
    "octavo_program_gate": (c_char_p, [c_void_p, c_int, c_int, c_int, c_int]),
    "octavo_program_rope": (c_char_p, [c_void_p, c_int, c_int, c_int, c_void_p, c_void_p, c_float]),
    "octavo_program_attention": (c_char_p, [c_void_p, c_int, c_int, c_int, c_float, c_int, c_float]),
    "octavo_program_select": (c_char_p, [c_void_p, c_int, c_int]),
    "octavo_program_head": (c_char_p, [c_void_p, POINTER(CWeight), c_int, c_float]),
    "octavo_program_ops": (c_int, [c_void_p]),
    "octavo_step": (c_char_p, [c_void_p, POINTER(CBatch), POINTER(CStepTimes)]),
    "octavo_step_begin": (c_char_p, [c_void_p, POINTER(CBatch)]),
    "octavo_step_items": (None, [c_void_p, c_void_p]),
    "octavo_step_run": (None, [c_void_p, c_int, c_int]),
    "octavo_step_attend": (None, [c_void_p, c_int, c_int]),
    "octavo_step_end": (None, [c_void_p, POINTER(CStepTimes)]),
    "octavo_op_ticks": (None, [c_void_p, c_void_p]),
    "octavo_draw": (c_int32, [c_void_p, c_int, POINTER(CSampling)]),
}


class Library:
    """The functions of one build, as attributes without the prefix: ``library.weight_bytes(weight)``. A function that can fail
    raises ``error`` with the library's own sentence."""

    def __init__(self, path: Path):
        self.path = path
        dll = ctypes.CDLL(str(path))
        dll.octavo_abi_version.restype = c_int
        if dll.octavo_abi_version() != ABI_VERSION:
            raise ConfigError(f"{path} belongs to another version of octavo: install octavo again.")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(dll, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("octavo_"), function)
        self.name: str = dll.octavo_isa().decode()
        self.check(dll.octavo_start())

    def __getattr__(self, name: str) -> Any:  # for type checkers: the constructor sets them
        raise AttributeError(f"the native library has no function octavo_{name}.")

    @staticmethod
    def check(sentence: bytes | None) -> None:
        """Raise RuntimeError where a function returned why it failed: a fault of the caller, not of the user."""
        if sentence is not None:
            raise RuntimeError(f"native library: {sentence.decode()}")


@cache
def _load(path: Path) -> Library:
    return Library(path)


def load() -> Library:
    """The build for this CPU, or that which OCTAVO_ISA names; loaded once. Raises ConfigError where there is none."""
    available = isa.built()
    if not available:
        raise ConfigError(NOT_COMPILED)
    return _load(available[isa.choose(machine.cpu_flags(), available)])


NOT_COMPILED = (
    "the native library was not compiled, because there was no C++ compiler that could when octavo was installed: "
    "install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++) and install octavo again"
)
