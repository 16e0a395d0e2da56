// bf16 panels on AVX-512 without VDPBF16PS, in block fixed point: see fixed_point.h. Rows are converted once a layer.
//
// A tile is 7 rows by 2 vectors of 16 columns: 14 integer sums of the block and 14 sums in float32, two weights and a broadcast.
// A prepared row is [k/32][32] int16, then [k/32] float32 scales.
#include "fixed_point.h"

#if defined(OCTAVO_FIXED_POINT)

#include "panel.h"

namespace octavo {

namespace {

constexpr int kTileRows = 7;
constexpr int kPairs = kBlock / 2;
constexpr size_t kAhead = 6144;  // bytes: hardware prefetchers stop at pages, and an item starts cold
constexpr size_t kPairBytes = kPanel * 4;

__m512 load_scales(const char* exponents) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(exponents))), 23));
}

// Spelled out, because GCC would copy every sum to another register and back, and keep the rest in memory for that.
inline void add_products(__m512i& sum, __m512i weights, __m512i pair) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(pair));
}

template <int R>
void tile(const char* panel, int k, const char* x, size_t x_stride, float* out) {
    constexpr int kChains = R <= 4 ? 2 : 1;  // few rows have too few sums to keep the multipliers busy; integers add up in any order
    __m512 sum[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    const size_t scales = size_t(k) * 2;  // of a row, where its integers end
    const char* exponents = panel;
    const char* w = panel + fixed_point_exponent_bytes(k);
    for (int b = 0; b < k / kBlock; b++, exponents += kPanel, x += kBlock * 2) {
        __m512i exact[kChains][R][2];
#pragma GCC unroll 2
        for (int c = 0; c < kChains; c++)
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) exact[c][r][0] = exact[c][r][1] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; i += kChains) {
#pragma GCC unroll 2
            for (int c = 0; c < kChains; c++, w += kPairBytes) {
                _mm_prefetch(w + kAhead, _MM_HINT_T0);
                _mm_prefetch(w + kAhead + 64, _MM_HINT_T0);
                const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
#pragma GCC unroll 16
                for (int r = 0; r < R; r++) {
                    int pair;
                    __builtin_memcpy(&pair, x + size_t(r) * x_stride + size_t(i + c) * 4, 4);
                    const __m512i a = _mm512_set1_epi32(pair);
                    add_products(exact[c][r][0], w0, a);
                    add_products(exact[c][r][1], w1, a);
                }
            }
        }
        const __m512 s0 = load_scales(exponents), s1 = load_scales(exponents + 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            float scale;
            __builtin_memcpy(&scale, x + size_t(r) * x_stride + scales - size_t(b) * (kBlock * 2 - 4), 4);
            const __m512 a = _mm512_set1_ps(scale);
            if (kChains == 2) {
                exact[0][r][0] = _mm512_add_epi32(exact[0][r][0], exact[kChains - 1][r][0]);
                exact[0][r][1] = _mm512_add_epi32(exact[0][r][1], exact[kChains - 1][r][1]);
            }
            sum[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(exact[0][r][0]), a), s0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(exact[0][r][1]), a), s1, sum[r][1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        _mm512_store_ps(out + r * kPanel, sum[r][0]);
        _mm512_store_ps(out + r * kPanel + 16, sum[r][1]);
    }
}

}  // namespace

size_t bf16_prepared_bytes(int k) { return size_t(k) * 2 + size_t(k) / kBlock * sizeof(float); }

void bf16_prepare(const void* x, int k, void* prepared) {
    const char* from = static_cast<const char*>(x);
    char* integers = static_cast<char*>(prepared);
    float* scales = reinterpret_cast<float*>(integers + size_t(k) * 2);
    for (int b = 0; b < k / kBlock; b++) scales[b] = activation_scale(to_fixed_point(from + b * kBlock * 2, integers + b * kBlock * 2));
}

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    using Tile = void (*)(const char*, int, const char*, size_t, float*);
    static constexpr Tile tiles[kTileRows] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>};
    tiles[rows - 1](static_cast<const char*>(panel), k, static_cast<const char*>(x), x_stride, out);
}

}  // namespace octavo

#endif
