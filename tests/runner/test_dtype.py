"""Which element type "auto" chooses."""

from __future__ import annotations

import pytest

from octavo.runner.dtype import resolve_dtype


@pytest.mark.parametrize(
    ("checkpoint", "flags", "expected"),
    [
        ("bfloat16", {"avx512_bf16", "sse"}, "bfloat16"),
        ("bfloat16", {"amx_bf16"}, "bfloat16"),
        ("bfloat16", {"avx2", "avx512f", "f16c"}, "float32"),
        ("float16", {"amx_fp16", "amx_bf16"}, "float16"),
        ("float16", {"avx512_fp16"}, "float16"),
        ("float16", {"avx512_bf16", "f16c"}, "bfloat16"),
        ("float16", {"f16c"}, "float32"),
        ("float32", {"amx_bf16", "avx512_bf16", "amx_fp16"}, "float32"),
        ("bfloat16", set(), "float32"),
    ],
)
def test_auto_is_what_the_cpu_multiplies_in_hardware(checkpoint, flags, expected):
    assert resolve_dtype("auto", checkpoint, flags) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_setting_is_taken_as_it_is(dtype):
    assert resolve_dtype(dtype, "bfloat16", set()) == dtype


def test_this_machine():
    assert resolve_dtype("auto", "bfloat16") in ("bfloat16", "float32")
