// Block fixed point: bf16 values as 14-bit integers with one power of two for each 32 along k, so that AVX-512 CPUs without
// VDPBF16PS multiply bf16 layers with VPDPWSSD: 32 products an instruction, where float32 has 16.
//
// The scale is the power of two that puts the block's largest magnitude between 2^12 and 2^13. A bf16 has 8 significant bits,
// so that magnitude is at most 255 * 2^5 = 8160, values down to a 32nd of its power of two are exact, and smaller ones are rounded
// to nearest even by at most half a unit, 2^-13 of the largest. Sums of a block are exact: 32 * 8160^2 < 2^31.
//
// A block whose largest magnitude is below 2^-95 counts as zeros. One with an infinity or a NaN has such a scale, and so makes its
// row's, or its column's, results NaN; the same goes for weights of 2^121 and more.
#pragma once

#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__) && !defined(OCTAVO_EMULATE_AMX)
#define OCTAVO_FIXED_POINT 1

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "bf16.h"
#include "quantize.h"

namespace octavo {

constexpr int kSmallestExponent = 32;  // biased, of the largest magnitude of a block that is no zero

// The product of two blocks is integer sum * activation scale * weight scale. Each scale alone is kept from over- and underflow by
// moving a power of two from the one to the other: 2^(e - 31) for activations, 2^(e + 7) for weights, where 2^(e - 12) is a unit.
inline float activation_scale(int exponent) {
    if (exponent == 255) return bits_to_float(0x7fc00000u);
    return bits_to_float(exponent < kSmallestExponent ? 0 : uint32_t(exponent - 31) << 23);
}

// The float32 exponent of a weight's scale; 255: infinity, of which the integers' zeros make NaN.
inline uint8_t weight_scale_exponent(int exponent) {
    return uint8_t(exponent < kSmallestExponent ? 0 : exponent >= 248 ? 255 : exponent + 7);
}

// A unit, from what weight_scale_exponent gave.
inline float weight_unit(uint8_t scale_exponent) {
    return bits_to_float(uint32_t(scale_exponent) << 23) * bits_to_float(uint32_t(127 - 19) << 23);
}

// 32 bf16 to as many int16; returns the biased exponent of the largest magnitude. A block that counts as zeros, or that has an
// infinity or a NaN, becomes zeros.
inline int to_fixed_point(const void* values, void* integers) {
    const __m512i pairs = _mm512_loadu_si512(values);
    const __m512i magnitudes = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes), _mm512_extracti64x4_epi64(magnitudes, 1));
    const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));  // SSE has a minimum across lanes only
    const int exponent = int(~uint32_t(_mm_cvtsi128_si32(least)) & 0x7fff) >> 7;
    // To units: 2^(12 - (exponent - 127)).
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(exponent < kSmallestExponent ? 0 : (266 - exponent) << 23));
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(even, factor)), high = _mm512_cvtps_epi32(_mm512_mul_ps(odd, factor));
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_slli_epi32(high, 16));
    _mm512_storeu_si512(integers, exponent == 255 ? _mm512_setzero_si512() : both);
    return exponent;
}

}  // namespace octavo

#endif
