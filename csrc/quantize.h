// Quantised activations: what 4- and 8-bit weights are multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "bf16.h"
#include "scratch.h"

namespace octavo {

constexpr int kBlock = 32;  // values that share a scale, in activations and (apart from Q6_K's 16) in weights

// 32 activations as int8 with one scale: value ~ scale * q. A row is k/32 of these; each fills one cache line.
//
// scale = largest magnitude / 127, q = round to nearest even of value * (127 / largest magnitude). A block whose largest magnitude
// is below 1e-30 counts as zeros. A block with a NaN or an infinity gets such a scale, and so makes the row's results non-finite.
// The sums let kernels treat weights as unsigned: sum (w - zero) q = sum w q - zero * sum q, with -zero * sum q where the exact
// integer accumulation starts.
struct alignas(64) QuantBlock {
    int8_t q[kBlock];
    float scale;
    float scaled_sum;            // scale * sum, for weights that have a minimum
    int32_t sum;                 // of q
    int32_t minus_8_sum;         // Q4_0: zero is at 8
    int32_t minus_128_sum;       // Q8_0, stored with 128 added
    int32_t minus_32_half[2];    // Q6_K: zero is at 32, scales are for 16 values each
    int32_t unused;
};
static_assert(sizeof(QuantBlock) == 64, "a block is a cache line");

constexpr float kSmallestMagnitude = 1e-30f;

// Integers of a block, and their sums over its halves, from the largest of the magnitudes' bits (which order like the magnitudes, NaN above
// all). Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits. With -ffp-contract=off, because a fused
// multiply-add would round differently.
#if defined(__AVX512VNNI__)

inline uint32_t largest_magnitude_bits(const float* values) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i low = _mm512_and_si512(_mm512_loadu_si512(values), magnitude);
    const __m512i high = _mm512_and_si512(_mm512_loadu_si512(values + 16), magnitude);
    return uint32_t(_mm512_reduce_max_epu32(_mm512_max_epu32(low, high)));
}

inline void round_block(const float* values, float inverse, int8_t* q, int32_t* half) {
    const __m512 factor = _mm512_set1_ps(inverse), shift = _mm512_set1_ps(12582912.0f);
    const __m512 low = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(values), factor), shift);
    const __m512 high = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(values + 16), factor), shift);
    const __m128i first = _mm512_cvtepi32_epi8(_mm512_castps_si512(low)), second = _mm512_cvtepi32_epi8(_mm512_castps_si512(high));
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
    const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    const __m256i twos = _mm256_hadd_epi32(fours, fours), ones = _mm256_hadd_epi32(twos, twos);
    half[0] = _mm256_extract_epi32(ones, 0);
    half[1] = _mm256_extract_epi32(ones, 4);
}

#else

inline uint32_t largest_magnitude_bits(const float* values) {
    uint32_t largest = 0;
    for (int i = 0; i < kBlock; i++) {
        const uint32_t magnitude = float_to_bits(values[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

inline void round_block(const float* values, float inverse, int8_t* q, int32_t* half) {
    int32_t rounded[kBlock];
    for (int i = 0; i < kBlock; i++) rounded[i] = int32_t(float_to_bits(values[i] * inverse + 12582912.0f) - 0x4b400000u);
    half[0] = half[1] = 0;
    for (int i = 0; i < kBlock / 2; i++) half[0] += int8_t(rounded[i]);
    for (int i = kBlock / 2; i < kBlock; i++) half[1] += int8_t(rounded[i]);
    for (int i = 0; i < kBlock; i++) q[i] = int8_t(rounded[i]);
}

#endif

inline void quantize_block(const float* values, QuantBlock* out) {
    const uint32_t largest = largest_magnitude_bits(values);
    const float magnitude = bits_to_float(largest);
    const bool zero = magnitude < kSmallestMagnitude;
    const float scale = zero ? 0.0f : magnitude / 127.0f;
    const float inverse = zero ? 0.0f : 127.0f / magnitude;
    int32_t half[2];
    round_block(values, inverse, out->q, half);
    const int32_t sum = half[0] + half[1];
    out->scale = scale;
    out->scaled_sum = scale * float(sum);
    out->sum = sum;
    out->minus_8_sum = -8 * sum;
    out->minus_128_sum = -128 * sum;
    out->minus_32_half[0] = -32 * half[0];
    out->minus_32_half[1] = -32 * half[1];
    out->unused = 0;
}

// Rows of float32 or bf16 to rows of QuantBlock; k is rounded up to a multiple of 32 with zeros.
struct QuantizeArgs {
    const void* x;    // [m][k]
    size_t x_stride;  // bytes between rows
    bool x_is_bf16;   // else float32
    QuantBlock* y;
    size_t y_stride;  // bytes between rows
    int m;
    int k;
};

int quantize_items(const QuantizeArgs& args);
void quantize_item(const QuantizeArgs& args, int item, Scratch& scratch);

}  // namespace octavo
