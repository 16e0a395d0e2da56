"""The linear layers of one build of the native library, as tests call them: C structures, packing, products."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_void_p
from dataclasses import dataclass

import numpy as np

KINDS = {"F32": 0, "F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}
STORE, ADD, SILU, GELU, ARGMAX = range(5)
FLOAT32, BF16, INT8 = range(3)

QUANT_BLOCK = np.dtype(
    [
        ("q", np.int8, 32),
        ("scale", np.float32),
        ("scaled_sum", np.float32),
        ("sum", np.int32),
        ("minus_8_sum", np.int32),
        ("minus_128_sum", np.int32),
        ("minus_32_half", np.int32, 2),
        ("unused", np.int32),
    ]
)


class CWeight(Structure):
    _fields_ = (("kind", c_int32), ("gated", c_bool), ("n", c_int), ("k", c_int), ("data", c_void_p))


class CSegment(Structure):
    _fields_ = (("rows", c_void_p), ("row_bytes", c_size_t), ("n", c_int), ("kind", c_int32))


class CPackArgs(Structure):
    _fields_ = (
        ("weight", CWeight),
        ("segments", CSegment * 8),
        ("segment_count", c_int),
        ("source_k", c_int),
        ("data", c_void_p),
    )


class CLinearArgs(Structure):
    _fields_ = (
        ("weight", POINTER(CWeight)),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("m", c_int),
        ("y", c_void_p),
        ("y_stride", c_size_t),
        ("bias", c_void_p),
        ("epilogue", c_int32),
        ("output", c_int32),
        ("softcap", c_float),
        ("best_value", c_void_p),
        ("best_index", c_void_p),
        ("threads", c_int),
        ("prepared", c_void_p),
    )


class CQuantizeArgs(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("x_is_bf16", c_bool),
        ("y", c_void_p),
        ("y_stride", c_size_t),
        ("m", c_int),
        ("k", c_int),
    )


def aligned(shape: tuple[int, ...], dtype: object, fill: int = 0) -> np.ndarray:
    """An array whose memory starts at a multiple of 64 bytes, every byte of it `fill`."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 to bf16 bits, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Packed:
    """A packed weight and the memory that it lies in."""

    c: CWeight
    data: np.ndarray


class Linear:
    """The functions of one library; array in, array out.

    fixed_point: whether the library multiplies bf16 in block fixed point (csrc/fixed_point.h).
    """

    def __init__(self, library: ctypes.CDLL, fixed_point: bool = False):
        self.library = library
        self.fixed_point = fixed_point
        for name in ("octavo_weight_bytes", "octavo_linear_stride", "octavo_linear_prepared_stride"):
            getattr(library, name).restype = c_size_t
        for name in ("octavo_pack_error", "octavo_linear_error"):
            getattr(library, name).restype = c_char_p

    def pack(self, segments: list[tuple[str, np.ndarray]], kind: str, k: int, gated: bool = False) -> Packed:
        """Segments are (element type, bytes [rows, bytes per row] or values [rows, k])."""
        args, keep = self.pack_args(segments, kind, k, gated)
        weight = args.weight
        data = aligned((self.library.octavo_weight_bytes(byref(weight)),), np.uint8, fill=0xFF)
        args.data = data.ctypes.data
        error = self.library.octavo_pack_error(byref(args))
        if error:
            raise ValueError(error.decode())
        items = self.library.octavo_pack_items(byref(args))
        for item in reversed(range(items)):
            self.library.octavo_pack_range(byref(args), item, item + 1)
        del keep
        weight.data = data.ctypes.data
        return Packed(weight, data)

    def pack_args(self, segments: list[tuple[str, np.ndarray]], kind: str, k: int, gated: bool) -> tuple[CPackArgs, list]:
        args = CPackArgs()
        keep = []
        for i, (name, rows) in enumerate(segments):
            rows = np.ascontiguousarray(rows)
            keep.append(rows)
            args.segments[i] = CSegment(rows.ctypes.data, rows.strides[0], len(rows), KINDS[name])
        args.segment_count = len(segments)
        float_sizes = {"F32": 4, "F16": 2, "BF16": 2}
        size = float_sizes.get(segments[0][0])
        args.source_k = min(k, keep[0].strides[0] // size) if size else k
        args.weight = CWeight(KINDS[kind], gated, sum(len(rows) for rows in keep), k, None)
        return args, keep

    def unpack(self, weight: Packed) -> np.ndarray:
        """float32 [packed columns, k]"""
        columns = 32 * self.library.octavo_weight_panels(byref(weight.c))
        out = np.empty((columns, weight.c.k), np.float32)
        for column in range(columns):
            self.library.octavo_unpack_column(byref(weight.c), column, out[column].ctypes.data_as(c_void_p))
        return out

    def pack_bias(self, weight: Packed, bias: np.ndarray) -> np.ndarray:
        out = np.full(32 * self.library.octavo_weight_panels(byref(weight.c)), np.nan, np.float32)
        bias = np.ascontiguousarray(bias, np.float32)
        self.library.octavo_pack_bias(byref(weight.c), bias.ctypes.data_as(c_void_p), out.ctypes.data_as(c_void_p))
        return out

    def quantize(self, x: np.ndarray) -> np.ndarray:
        """Rows of float32, or of bf16 bits, as QUANT_BLOCK [m, blocks]."""
        m, k = x.shape
        blocks = (k + 31) // 32
        y = aligned((m, blocks + 1), QUANT_BLOCK, fill=0xFF)
        x = np.ascontiguousarray(x)
        args = CQuantizeArgs(x.ctypes.data, x.strides[0], x.dtype == np.uint16, y.ctypes.data, y.strides[0], m, k)
        self.library.octavo_quantize(byref(args))
        return y[:, :blocks]

    def __call__(
        self,
        weight: Packed,
        x: np.ndarray,
        epilogue: int = STORE,
        output: int = FLOAT32,
        y: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        softcap: float = 0.0,
        threads: int = 1,
        backwards: bool = False,
        argmax_only: bool = False,
    ) -> np.ndarray:
        """Rows of bf16 bits or of QUANT_BLOCK times the weight. ARGMAX returns columns, and writes ``y`` too unless refused."""
        m = len(x)
        columns = weight.c.n // 2 if weight.c.gated else weight.c.n
        if y is None:
            shape, dtype = {
                FLOAT32: ((m, columns), np.float32),
                BF16: ((m, columns), np.uint16),
                INT8: ((m, (columns + 31) // 32), QUANT_BLOCK),
            }[output]
            y = aligned(shape, dtype, fill=0xFF)
        args = CLinearArgs(
            ctypes.pointer(weight.c), x.ctypes.data, x.strides[0], m, y.ctypes.data, y.strides[0], None, epilogue, output, softcap
        )
        args.threads = threads
        if bias is not None:
            args.bias = bias.ctypes.data
        if argmax_only:
            args.y = None
        prepared = aligned((max(1, m * self.library.octavo_linear_prepared_stride(byref(weight.c))),), np.uint8, fill=0xFF)
        args.prepared = prepared.ctypes.data
        items = self.library.octavo_linear_items(byref(args))
        best_value, best_index = np.empty((items, m), np.float32), np.empty((items, m), np.int32)
        if epilogue == ARGMAX:
            args.best_value, args.best_index = best_value.ctypes.data, best_index.ctypes.data
        error = self.library.octavo_linear_error(byref(args))
        if error:
            raise ValueError(error.decode())
        self.library.octavo_linear_prepare(byref(args))
        for item in reversed(range(items)) if backwards else range(items):
            self.library.octavo_linear_range(byref(args), item, item + 1)
        if epilogue != ARGMAX:
            return y
        columns_of = np.full(m, -1, np.int32)
        self.library.octavo_linear_argmax(byref(args), columns_of.ctypes.data_as(c_void_p))
        return columns_of
