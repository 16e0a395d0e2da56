"""Linear layers of the native library against float64, in every build that this machine can run."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.native import build
from tests.native.linear_library import (
    ADD,
    ARGMAX,
    BF16,
    FLOAT32,
    GELU,
    INT8,
    KINDS,
    SILU,
    STORE,
    Linear,
    Packed,
    aligned,
    from_bf16,
    to_bf16,
)

QUANTIZED = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
ISAS = build.available()
SOURCES = ("linear", "weight", "quantize", "panel")
EPSILON = 2.0**-23

pytestmark = pytest.mark.skipif(not ISAS, reason="needs g++")


@pytest.fixture(scope="module", params=ISAS)
def linear(request: pytest.FixtureRequest) -> Linear:
    return Linear(build.library(request.param, SOURCES), fixed_point=request.param == "avx512_vnni")


def random_rows(rng: np.random.Generator, kind: str, n: int, k: int) -> np.ndarray:
    """Weight rows as bytes of a GGUF file: all bits random, apart from the float16 fields, which are of a usual size."""
    if kind == "BF16":
        return to_bf16(rng.normal(size=(n, k))).view(np.uint8)
    if kind in ("F16", "F32"):
        return rng.normal(size=(n, k)).astype(np.float16 if kind == "F16" else np.float32).view(np.uint8)
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
    fields = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]
    for field in fields:
        scale = rng.normal(size=blocks.shape[:2]).astype(np.float16)
        blocks[:, :, field : field + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(n, -1)


def dequantized(kind: str, rows: np.ndarray) -> np.ndarray:
    """float64 [n, k], by the gguf package."""
    if kind == "BF16":
        return from_bf16(rows.view(np.uint16)).astype(np.float64)
    if kind in ("F16", "F32"):
        return rows.view(np.float16 if kind == "F16" else np.float32).astype(np.float64)
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind]).astype(np.float64)


def activations(linear: Linear, kind: str, values: np.ndarray) -> np.ndarray:
    """What a weight of this kind is multiplied with; rows lie further apart than they are long, with NaN between them."""
    if kind != "BF16":
        return linear.quantize(values.astype(np.float32))
    m, k = values.shape
    x = aligned((m, k + 32), np.uint16, fill=0xFF)[:, :k]
    x[:] = to_bf16(values)
    return x


def values_of(kind: str, x: np.ndarray) -> np.ndarray:
    """Activations as float64 [m, k]."""
    if kind == "BF16":
        return from_bf16(x).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (x["q"].astype(np.float64) * x["scale"][..., None]).reshape(len(x), -1)


def in_fixed_point(values: np.ndarray, largest_exponent: int) -> np.ndarray:
    """Rows of bf16 values as block fixed point holds them, by the rule in fixed_point.h."""
    blocks = values.reshape(len(values), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    exponent = np.frexp(largest)[1] - 1
    with np.errstate(invalid="ignore"):
        held = np.ldexp(np.rint(np.ldexp(blocks, 12 - exponent)), exponent - 12)
    held = np.where(largest < 2.0**-95, 0, held)
    return np.where(np.isfinite(largest) & (exponent <= largest_exponent), held, np.nan).reshape(values.shape)


def held(linear: Linear, kind: str, w: np.ndarray) -> np.ndarray:
    """What a packed weight holds of these rows."""
    return in_fixed_point(w, 120) if kind == "BF16" and linear.fixed_point else w


def multiplied(linear: Linear, kind: str, x: np.ndarray) -> np.ndarray:
    """What is multiplied of these rows of activations."""
    return in_fixed_point(x, 127) if kind == "BF16" and linear.fixed_point else x


def close(linear: Linear, kind: str, found: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """Within what float32 accumulation over k can lose, of the values that are multiplied."""
    x, w = multiplied(linear, kind, x), held(linear, kind, w)
    exact = x @ w.T
    bound = (x.shape[1] + 8) * EPSILON * (np.abs(x) @ np.abs(w).T) + 1e-30
    assert np.isfinite(found).all()
    worst = (np.abs(found - exact) / bound).max()
    assert worst < 1, f"off by {worst:.3g} times the bound"


def make(linear: Linear, rng: np.random.Generator, kind: str, n: int, k: int) -> tuple[Packed, np.ndarray]:
    rows = random_rows(rng, kind, n, k)
    return linear.pack([(kind, rows)], kind, k), dequantized(kind, rows)


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 70, 3), (3, 33, 2), (9, 64, 1), (14, 96, 2), (37, 40, 5), (70, 31, 1), (300, 65, 1)]
)
def test_product(linear: Linear, kind: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    k *= 256 if kind.endswith("_K") else 32
    weight, w = make(linear, rng, kind, n, k)
    x = activations(linear, kind, rng.normal(size=(m, k)))
    close(linear, kind, linear(weight, x), values_of(kind, x), w)


@pytest.mark.parametrize("k", [576, 1536, 8960])
@pytest.mark.parametrize("outlier", [1, 30, 300])
def test_fixed_point_adds_little_to_what_bf16_has_rounded(k: int, outlier: int) -> None:
    """At the inner dimensions of models, with one activation in a hundred so many times as large as the others: of the bf16
    values themselves, blocks lose at most a fifth of what rounding activations to bf16 has lost. Without outliers a product
    stays within the bound of float32 accumulation."""
    if "avx512_vnni" not in ISAS:
        pytest.skip("needs AVX-512 with VNNI")
    linear = Linear(build.library("avx512_vnni", SOURCES))
    rng = np.random.default_rng(23)
    weight, w = make(linear, rng, "BF16", 64, k)
    values = rng.normal(size=(40, k)) * np.where(rng.random(k) < 0.01, outlier, 1)
    x = activations(linear, "BF16", values)
    found, exact = linear(weight, x), values_of("BF16", x) @ w.T
    assert np.linalg.norm(found - exact) < 0.2 * np.linalg.norm(exact - values @ w.T)
    if outlier == 1:
        close(linear, "BF16", found, values_of("BF16", x), w)


def test_fixed_point_over_the_range_of_bf16() -> None:
    """Blocks of every magnitude, of one exponent and of many; sums of a block that come next to what an int32 holds."""
    if "avx512_vnni" not in ISAS:
        pytest.skip("needs AVX-512 with VNNI")
    linear = Linear(build.library("avx512_vnni", SOURCES), fixed_point=True)
    rng = np.random.default_rng(24)
    scale = 2.0 ** rng.integers(-40, 40, (2, 40, 8, 1))
    spread = 2.0 ** rng.integers(-20, 1, (2, 40, 8, 32))
    x, w = (rng.choice([-255 / 128, 255 / 128, 1, 0], (2, 40, 8, 32)) * scale * spread).reshape(2, 40, 256)
    x *= 2.0**-45  # products of the largest weights stay finite
    x[:5], w[:5] = 255 / 128 * 2.0**-45, 255 / 128
    x[5], w[5] = -x[0], 2.0**-126
    w[6], w[7] = 2.0**120, 2.0**-95
    weight = linear.pack([("F32", w.astype(np.float32))], "BF16", 256)
    np.testing.assert_array_equal(linear.unpack(weight)[:40], in_fixed_point(w, 120))
    close(linear, "BF16", linear(weight, activations(linear, "BF16", x)), x, w)
    w[3, 40] = 2.0**121
    found = linear(linear.pack([("F32", w.astype(np.float32))], "BF16", 256), activations(linear, "BF16", x))
    np.testing.assert_array_equal(np.isnan(found), np.broadcast_to(np.arange(40) == 3, (40, 40)))


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
def test_unpacked_columns_are_the_sources_rows(linear: Linear, kind: str) -> None:
    weight, w = make(linear, np.random.default_rng(1), kind, 45, 512)
    found = linear.unpack(weight)
    atol = 0 if kind in ("BF16", "Q4_0", "Q8_0") else 1e-5
    np.testing.assert_allclose(found[:45], held(linear, kind, w), rtol=3 * EPSILON, atol=atol)
    assert not found[45:].any()


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_bf16_weights_come_from_any_float(linear: Linear, source: str) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, source, 33, 50)  # and from rows that are no multiple of 32 long
    found = linear.unpack(linear.pack([(source, rows)], "BF16", 64))
    exact = np.zeros((33, 64))
    exact[:, :50] = from_bf16(to_bf16(dequantized(source, rows)))
    np.testing.assert_array_equal(found[:33, :50], held(linear, "BF16", exact)[:, :50])
    assert not found[33:].any()
    assert not found[:, 50:].any()


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
def test_segments_are_stacked(linear: Linear, kind: str) -> None:
    rng = np.random.default_rng(3)
    parts = [random_rows(rng, kind, n, 256) for n in (40, 7, 19)]
    weight = linear.pack([(kind, rows) for rows in parts], kind, 256)
    x = activations(linear, kind, rng.normal(size=(5, 256)))
    close(linear, kind, linear(weight, x), values_of(kind, x), np.concatenate([dequantized(kind, rows) for rows in parts]))


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
def test_bytes_for_each_weight(linear: Linear, kind: str) -> None:
    """Kept at their bit width: within 3 % of the file's size (Q4_K's scales are widened from 6 to 8 bits)."""
    n, k = 64, 512
    rows = random_rows(np.random.default_rng(4), kind, n, k)
    assert rows.nbytes <= linear.pack([(kind, rows)], kind, k).data.nbytes <= rows.nbytes * 1.03


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
@pytest.mark.parametrize("epilogue", [STORE, SILU])
def test_a_rows_result_depends_on_that_row_alone(linear: Linear, kind: str, epilogue: int) -> None:
    """Bitwise, over the number of rows, the row's place, how items are cut and in which order they run."""
    rng = np.random.default_rng(5)
    n, k, m = 200, 512, 75
    gated = epilogue == SILU
    parts = [random_rows(rng, kind, n // 2, k) for _ in range(2)]
    weight = linear.pack([(kind, rows) for rows in parts], kind, k, gated)
    x = activations(linear, kind, rng.normal(size=(m, k)))
    outputs = (FLOAT32, BF16, INT8) if gated else (FLOAT32, BF16)
    for output in outputs:
        one_by_one = np.concatenate([linear(weight, x[i : i + 1], epilogue, output) for i in range(m)])
        for rows in (2, 3, 5, 8, 13, 14, 15, 16, 17, 31, 33, 64, 75):
            for start in {0, (m - rows) // 2, m - rows}:
                found = linear(weight, x[start : start + rows], epilogue, output, threads=rows % 3 + 1, backwards=rows % 2 == 1)
                assert found.tobytes() == one_by_one[start : start + rows].tobytes(), (output, rows, start)


@pytest.mark.parametrize("kind", ["BF16", "Q4_0"])
def test_results_do_not_depend_on_how_many_rows_fit_a_block(linear: Linear, kind: str) -> None:
    rng = np.random.default_rng(6)
    weight, _ = make(linear, rng, kind, 48, 2048)
    x = activations(linear, kind, rng.normal(size=(150, 2048)))
    assert linear(weight, x).tobytes() == np.concatenate([linear(weight, x[i : i + 25]) for i in range(0, 150, 25)]).tobytes()


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("bits", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1)])
def test_extreme_integers_do_not_saturate(linear: Linear, kind: str, bits: int, signs: tuple[int, int]) -> None:
    rows = random_rows(np.random.default_rng(20), kind, 33, 256)
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    fields = {"Q4_0": [0, 1], "Q4_1": [0, 1, 2, 3], "Q8_0": [0, 1], "Q4_K": [0, 1, 2, 3], "Q6_K": [208, 209]}[kind]
    blocks = rows.reshape(33, 256 // values, size)
    kept = blocks[:, :, fields].copy()
    blocks[:] = bits
    blocks[:, :, fields] = kept
    x = linear.quantize(np.tile(np.float32(signs), (15, 128)))
    close(linear, kind, linear(linear.pack([(kind, rows)], kind, 256), x), values_of(kind, x), dequantized(kind, rows))


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("epilogue", [STORE, SILU, GELU])
def test_quantized_weights_agree_bitwise_between_instruction_sets(kind: str, epilogue: int) -> None:
    rng = np.random.default_rng(7)
    rows = [random_rows(rng, kind, 50, 512) for _ in range(2)]
    values = rng.normal(size=(20, 512)).astype(np.float32)
    found = {}
    for isa in ISAS:
        linear = Linear(build.library(isa, SOURCES))
        weight = linear.pack([(kind, part) for part in rows], kind, 512, gated=epilogue != STORE)
        x = linear.quantize(values)
        found[isa] = x.tobytes(), linear(weight, x, epilogue).tobytes()
        if epilogue != STORE:
            found[isa] += (linear(weight, x, epilogue, INT8).tobytes(),)
    assert len(set(found.values())) == 1, [isa for isa in ISAS if found[isa] != found[ISAS[0]]]


def numpy_quantized(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 [m, blocks, 32] and float32 scales [m, blocks], by the rule in quantize.h."""
    blocks = values.reshape(len(values), -1, 32)
    largest = np.abs(blocks).max(-1)
    zero = largest < np.float32(1e-30)
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.where(zero, np.float32(0), largest / np.float32(127))
        inverse = np.where(zero, np.float32(0), np.float32(127) / largest)
    return np.rint(blocks * inverse[..., None]).astype(np.int8), scale


@pytest.mark.parametrize("as_bf16", [False, True])
def test_quantized_activations(linear: Linear, as_bf16: bool) -> None:
    rng = np.random.default_rng(8)
    values = (rng.normal(size=(70, 96)) * 10.0 ** rng.integers(-6, 6, (70, 1))).astype(np.float32)
    values[3, 32:64] = 0
    values[4, :32] = 1e-38
    values[5, :32] = np.arange(32) - 127 / 2  # ties
    values[6, :64] = 127, *([0.5] * 15), *([-1.5] * 16), 127, *([2.5] * 31)
    if as_bf16:
        values = from_bf16(to_bf16(values))
    found = linear.quantize(to_bf16(values) if as_bf16 else values)
    q, scale = numpy_quantized(values)
    np.testing.assert_array_equal(found["q"], q)
    np.testing.assert_array_equal(found["scale"], scale)
    sums = q.astype(np.int32).sum(-1)
    np.testing.assert_array_equal(found["sum"], sums)
    np.testing.assert_array_equal(found["scaled_sum"], scale * sums.astype(np.float32))
    np.testing.assert_array_equal(found["minus_8_sum"], -8 * sums)
    np.testing.assert_array_equal(found["minus_128_sum"], -128 * sums)
    np.testing.assert_array_equal(found["minus_32_half"], -32 * q.astype(np.int32).reshape(70, 3, 2, 16).sum(-1))


def test_quantized_rows_are_padded_with_zeros(linear: Linear) -> None:
    values = np.random.default_rng(9).normal(size=(3, 40)).astype(np.float32)
    padded = np.zeros((3, 64), np.float32)
    padded[:, :40] = values
    assert linear.quantize(values).tobytes() == linear.quantize(padded).tobytes()


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_row_is_not_finite_and_the_others_are(linear: Linear, kind: str, poison: float) -> None:
    rng = np.random.default_rng(10)
    weight, w = make(linear, rng, kind, 40, 256)
    values = rng.normal(size=(17, 256))
    values[8, 77] = poison
    x = activations(linear, kind, values)
    y = linear(weight, x)
    healthy = np.arange(17) != 8
    close(linear, kind, y[healthy], values_of(kind, x)[healthy], w)
    reached = w[:, 77] != 0 if kind == "BF16" else np.ones(40, bool)
    assert not np.isfinite(y[8][reached]).any()


@pytest.mark.parametrize("kind", ["BF16", "Q4_1"])
def test_bias_and_soft_cap(linear: Linear, kind: str) -> None:
    rng = np.random.default_rng(11)
    weight, w = make(linear, rng, kind, 45, 64)
    x = activations(linear, kind, rng.normal(size=(6, 64)))
    bias = rng.normal(size=45).astype(np.float32)
    exact = multiplied(linear, kind, values_of(kind, x)) @ held(linear, kind, w).T + bias
    packed = linear.pack_bias(weight, bias)
    np.testing.assert_allclose(linear(weight, x, bias=packed), exact, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(linear(weight, x, bias=packed, softcap=3.0), 3 * np.tanh(exact / 3), rtol=1e-5, atol=1e-5)


def test_bf16_results_are_rounded_to_nearest(linear: Linear) -> None:
    rng = np.random.default_rng(12)
    weight, _ = make(linear, rng, "BF16", 45, 64)
    x = activations(linear, "BF16", rng.normal(size=(6, 64)))
    np.testing.assert_array_equal(linear(weight, x, output=BF16), to_bf16(linear(weight, x)))


@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_adding_into_a_residual(linear: Linear, kind: str) -> None:
    rng = np.random.default_rng(13)
    weight, _ = make(linear, rng, kind, 45, 64)
    x = activations(linear, kind, rng.normal(size=(20, 64)))
    residual = rng.normal(size=(20, 50)).astype(np.float32)
    before = residual.copy()
    linear(weight, x, ADD, y=residual)
    np.testing.assert_array_equal(residual[:, :45], before[:, :45] + linear(weight, x))
    np.testing.assert_array_equal(residual[:, 45:], before[:, 45:])


def gated_exact(epilogue: int, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    if epilogue == SILU:
        with np.errstate(over="ignore"):
            return gate / (1 + np.exp(-gate)) * up
    return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
@pytest.mark.parametrize("epilogue", [SILU, GELU])
@pytest.mark.parametrize("half", [16, 32, 37, 100])
def test_gated_activation(linear: Linear, kind: str, epilogue: int, half: int) -> None:
    rng = np.random.default_rng(14)
    gate, up = (random_rows(rng, kind, half, 256) for _ in range(2))
    weight = linear.pack([(kind, gate), (kind, up)], kind, 256, gated=True)
    x = activations(linear, kind, rng.normal(size=(9, 256)) * (0.2 if kind == "BF16" else 0.01))
    bias = rng.normal(size=2 * half).astype(np.float32)
    exact = multiplied(linear, kind, values_of(kind, x))
    exact_gate = exact @ held(linear, kind, dequantized(kind, gate)).T + bias[:half]
    exact_up = exact @ held(linear, kind, dequantized(kind, up)).T + bias[half:]
    packed = linear.pack_bias(weight, bias)
    found = linear(weight, x, epilogue, bias=packed)
    expected = gated_exact(epilogue, exact_gate, exact_up)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(linear(weight, x, epilogue, BF16, bias=packed), to_bf16(found))
    padded = np.zeros((9, (half + 31) // 32 * 32), np.float32)
    padded[:, :half] = found
    assert linear(weight, x, epilogue, INT8, bias=packed).tobytes() == linear.quantize(padded).tobytes()


@pytest.mark.parametrize("epilogue", [SILU, GELU])
def test_activation_over_its_whole_range(linear: Linear, epilogue: int) -> None:
    """Through a weight that is one at one place: the relative error of the function itself, and its ends.

    Gate and up read different blocks of 32, of which fixed point holds each within its own range.
    """
    values = np.concatenate([np.linspace(-100, 100, 1601), [0.0, -0.0, 1e-28, -1e-28, 3e38, -3e38]])
    x = aligned((len(values), 64), np.uint16)
    x[:, 0], x[:, 32] = to_bf16(values), to_bf16(np.ones(len(values)))
    gate, up = np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32)
    gate[0, 0] = up[0, 32] = 1
    weight = linear.pack([("F32", gate), ("F32", up)], "BF16", 64, gated=True)
    found = linear(weight, x, epilogue)[:, 0]
    with np.errstate(over="ignore"):
        exact = gated_exact(epilogue, from_bf16(x[:, 0]).astype(np.float64), np.ones(len(values)))
    exact = np.where(np.isnan(exact), 0, exact)  # -3e38 * 0
    np.testing.assert_allclose(found, exact, rtol=3e-6 if epilogue == SILU else 1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["BF16", *QUANTIZED])
@pytest.mark.parametrize("m", [1, 17, 64])
def test_argmax(linear: Linear, kind: str, m: int) -> None:
    rng = np.random.default_rng(15)
    rows = random_rows(rng, kind, 1000, 256)
    rows[500:] = rows[:500]  # every value twice, in different items: the lower column wins
    weight = linear.pack([(kind, rows)], kind, 256)
    x = activations(linear, kind, rng.normal(size=(m, 256)))
    y = np.empty((m, 1000), np.float32)
    found = linear(weight, x, ARGMAX, y=y, threads=4, backwards=True)
    assert y.tobytes() == linear(weight, x).tobytes()
    np.testing.assert_array_equal(found, y.argmax(1))
    assert found.max() < 500
    np.testing.assert_array_equal(linear(weight, x, ARGMAX, argmax_only=True), found)


def test_argmax_of_rows_without_a_largest(linear: Linear) -> None:
    rng = np.random.default_rng(16)
    weight, _ = make(linear, rng, "BF16", 70, 64)
    values = rng.normal(size=(4, 64))
    values[1] = np.nan
    values[2] = 0
    found = linear(weight, activations(linear, "BF16", values), ARGMAX)
    assert found[1] == 0
    assert found[2] == 0


def test_argmax_passes_over_nan(linear: Linear) -> None:
    rng = np.random.default_rng(21)
    rows = rng.normal(size=(70, 64)).astype(np.float32)
    rows[::3] = np.nan
    x = activations(linear, "BF16", rng.normal(size=(40, 64)))
    y = np.empty((40, 70), np.float32)
    found = linear(linear.pack([("F32", rows)], "BF16", 64), x, ARGMAX, y=y)
    np.testing.assert_array_equal(found, np.nanargmax(y, 1))


def test_no_rows(linear: Linear) -> None:
    weight, _ = make(linear, np.random.default_rng(17), "BF16", 40, 64)
    assert linear(weight, aligned((0, 64), np.uint16)).shape == (0, 40)


def test_what_cannot_be_packed_is_refused_in_words(linear: Linear) -> None:
    rng = np.random.default_rng(18)
    q4 = random_rows(rng, "Q4_0", 4, 64)
    with pytest.raises(ValueError, match="multiple of 32"):
        linear.pack([("F32", rng.normal(size=(4, 50)).astype(np.float32))], "BF16", 50)
    with pytest.raises(ValueError, match="of 256 for Q4_K"):
        linear.pack([("Q4_K", random_rows(rng, "Q4_K", 4, 256))], "Q4_K", 288)
    with pytest.raises(ValueError, match="rows of its own kind"):
        linear.pack([("Q4_0", q4)], "BF16", 64)
    with pytest.raises(ValueError, match="rows of its own kind"):
        linear.pack([("Q4_0", q4)], "Q4_1", 64)
    with pytest.raises(ValueError, match="two segments of equally many rows"):
        linear.pack([("Q4_0", q4), ("Q4_0", q4[:3])], "Q4_0", 64, gated=True)
    with pytest.raises(ValueError, match="at least their own length"):
        linear.pack([("Q4_0", q4[:, :18].copy())], "Q4_0", 64)
    assert set(KINDS) >= set(QUANTIZED)


def test_what_cannot_be_computed_is_refused_in_words(linear: Linear) -> None:
    rng = np.random.default_rng(19)
    weight, _ = make(linear, rng, "BF16", 40, 64)
    x = activations(linear, "BF16", rng.normal(size=(2, 64)))
    with pytest.raises(ValueError, match="gated weight"):
        linear(weight, x, SILU)
    with pytest.raises(ValueError, match="int8 results come from gated epilogues"):
        linear(weight, x, STORE, INT8)
    with pytest.raises(ValueError, match="float32 results"):
        linear(weight, x, ADD, BF16)
    with pytest.raises(ValueError, match="soft cap"):
        linear(weight, x, ADD, softcap=1.0)
