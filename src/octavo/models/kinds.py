"""Element types, by GGML's names: how their values are packed."""

from __future__ import annotations

# Elements of a block, bytes of a block. A row is a whole number of blocks.
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def row_bytes(kind: str, width: int) -> int:
    """Bytes of a row of ``width`` elements, a multiple of the kind's block."""
    elements, size = BLOCKS[kind]
    return width // elements * size


def common_dtype(kinds: set[str]) -> str:
    """The dtype that stands for weights of these kinds: their own where there is one, float32 for a mixture of plain ones,
    bfloat16 where any is quantised, or where there are none."""
    if not kinds or kinds - DTYPES.keys():
        return "bfloat16"
    return DTYPES[next(iter(kinds))] if len(kinds) == 1 else "float32"
