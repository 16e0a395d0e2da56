// Lanes: one register's worth of float32, with the few operations the kernels need, spelled once per instruction set.
// Kernels written on it read the same for AVX-512, AVX2 and whatever the compiler makes of plain vectors (SSE2, NEON).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace octavo {

#if defined(__AVX512F__)

struct Lanes {
    static constexpr int count = 16;
    __m512 v;
    static Lanes set(float x) { return {_mm512_set1_ps(x)}; }
    static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
};

inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes floor(Lanes a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }

// a * 2^floor(n), for n below 128; 0 where that is too small for float32.
inline Lanes scale_by_power(Lanes a, Lanes n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// Lanes [low, high) of `a`, `other` in the rest. low and high may lie outside [0, count].
inline Lanes keep_range(Lanes a, int low, int high, Lanes other) {
    const auto below = [](int n) { return n <= 0 ? 0u : n >= 16 ? 0xffffu : (1u << n) - 1u; };
    return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(below(high) & ~below(low)), a.v)};
}

inline float largest(Lanes a) { return _mm512_reduce_max_ps(a.v); }
inline float sum(Lanes a) { return _mm512_reduce_add_ps(a.v); }

#elif defined(__AVX2__) && defined(__FMA__)

struct Lanes {
    static constexpr int count = 8;
    __m256 v;
    static Lanes set(float x) { return {_mm256_set1_ps(x)}; }
    static Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
};

inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Lanes floor(Lanes a) { return {_mm256_floor_ps(a.v)}; }

// a * 2^floor(n), for n from -126 up to below 128.
inline Lanes scale_by_power(Lanes a, Lanes n) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_floor_ps(n.v));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(power))};
}

inline Lanes keep_range(Lanes a, int low, int high, Lanes other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i from = _mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane);
    const __m256i to = _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane);
    return {_mm256_blendv_ps(other.v, a.v, _mm256_castsi256_ps(_mm256_andnot_si256(from, to)))};
}

inline float largest(Lanes a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline float sum(Lanes a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#else

// The compiler's own vectors: a register of SSE2 or NEON, or scalars where there is neither.
struct Lanes {
    static constexpr int count = 4;
    typedef float Floats __attribute__((vector_size(16)));
    typedef int32_t Ints __attribute__((vector_size(16)));
    Floats v;
    static Lanes set(float x) { return {Floats{x, x, x, x}}; }
    static Lanes load(const float* p) {
        Lanes a;
        std::memcpy(&a.v, p, sizeof a.v);
        return a;
    }
    void store(float* p) const { std::memcpy(p, &v, sizeof v); }
};

inline Lanes operator+(Lanes a, Lanes b) { return {a.v + b.v}; }
inline Lanes operator-(Lanes a, Lanes b) { return {a.v - b.v}; }
inline Lanes operator*(Lanes a, Lanes b) { return {a.v * b.v}; }
inline Lanes operator/(Lanes a, Lanes b) { return {a.v / b.v}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
#if defined(__FP_FAST_FMAF)
    for (int i = 0; i < Lanes::count; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
#else
    return {a.v * b.v + c.v};
#endif
}
inline Lanes max(Lanes a, Lanes b) { return {a.v > b.v ? a.v : b.v}; }
inline Lanes min(Lanes a, Lanes b) { return {a.v < b.v ? a.v : b.v}; }

// Exact for |a| < 2^31; callers clamp below.
inline Lanes floor(Lanes a) {
    const Lanes::Floats cut = __builtin_convertvector(__builtin_convertvector(a.v, Lanes::Ints), Lanes::Floats);
    const Lanes::Floats one = Lanes::set(1.0f).v;
    return {cut > a.v ? cut - one : cut};
}

// a * 2^floor(n), for n from -126 up to below 128.
inline Lanes scale_by_power(Lanes a, Lanes n) {
    const Lanes::Ints power = (__builtin_convertvector(floor(n).v, Lanes::Ints) + 127) << 23;
    Lanes factor;
    std::memcpy(&factor.v, &power, sizeof power);
    return a * factor;
}

inline Lanes keep_range(Lanes a, int low, int high, Lanes other) {
    const Lanes::Ints lane = {0, 1, 2, 3};
    const Lanes::Ints in = (lane >= low) & (lane < high);
    return {in ? a.v : other.v};
}

inline float largest(Lanes a) {
    float top = a.v[0];
    for (int i = 1; i < Lanes::count; ++i) top = a.v[i] > top ? a.v[i] : top;
    return top;
}

inline float sum(Lanes a) {
    return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
}

#endif

}  // namespace octavo
