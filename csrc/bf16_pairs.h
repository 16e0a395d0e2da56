// Sixteen pairs of bf16 in a register: VDPBF16PS and VCVTNE2PS2BF16, and what stands for them on AVX-512 CPUs that lack them.
#pragma once

#include <immintrin.h>

namespace octavo {

#if defined(__AVX512BF16__)

// sum + a[0] * b[0] + a[1] * b[1] of each pair.
inline __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// Rounded to nearest, ties to even: the values of `low`, then those of `high`.
inline __m512i round_to_pairs(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

#else

inline __m512 first_of_pairs(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 second_of_pairs(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
}

inline __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
    sum = _mm512_fmadd_ps(first_of_pairs(a), first_of_pairs(b), sum);
    return _mm512_fmadd_ps(second_of_pairs(a), second_of_pairs(b), sum);
}

// The upper halves of what was rounded; a NaN stays one.
inline __m512i rounded(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
}

inline __m512i round_to_pairs(__m512 low, __m512 high) {
    const __m512i upper_halves = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                                  21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(rounded(low), upper_halves, rounded(high));
}

#endif

}  // namespace octavo
