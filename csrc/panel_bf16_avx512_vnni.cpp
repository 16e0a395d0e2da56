// bf16 panels on AVX-512 without VDPBF16PS: pairs are split into two float32 vectors by a shift and a mask, rows are widened once a
// tile. 14 rows by 2 vectors of 16 columns: 28 accumulators, two weights, the mask; activations are broadcast by the product itself.
#if defined(__AVX512F__) && !defined(__AVX512BF16__) && !defined(OCTAVO_EMULATE_AMX)

#include <immintrin.h>

#include "panel.h"

namespace octavo {

namespace {

constexpr int kTileRows = 14;
constexpr size_t kAhead = 6144;  // bytes: hardware prefetchers stop at pages, and an item starts cold

void widen(const char* from, int k, float* to) {
    for (int i = 0; i < k; i += 16) {
        const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + size_t(i) * 2)));
        _mm512_storeu_ps(to + i, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
    }
}

template <int R>
void tile(const char* panel, int k, const float* x, float* out) {
    __m512 sum[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
    for (int i = 0; i < k; i += 2, panel += 128) {
        _mm_prefetch(panel + kAhead, _MM_HINT_T0);
        _mm_prefetch(panel + kAhead + 64, _MM_HINT_T0);
        __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(panel), 16));
        __m512 w1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(panel + 64), 16));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m512 a = _mm512_set1_ps(x[size_t(r) * k + i]);
            sum[r][0] = _mm512_fmadd_ps(a, w0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(a, w1, sum[r][1]);
        }
        w0 = _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(panel), upper));
        w1 = _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(panel + 64), upper));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m512 a = _mm512_set1_ps(x[size_t(r) * k + i + 1]);
            sum[r][0] = _mm512_fmadd_ps(a, w0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(a, w1, sum[r][1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        _mm512_store_ps(out + r * kPanel, sum[r][0]);
        _mm512_store_ps(out + r * kPanel + 16, sum[r][1]);
    }
}

}  // namespace

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out, float* scratch) {
    using Tile = void (*)(const char*, int, const float*, float*);
    static constexpr Tile tiles[kTileRows] = {tile<1>, tile<2>, tile<3>,  tile<4>,  tile<5>,  tile<6>,  tile<7>,
                                              tile<8>, tile<9>, tile<10>, tile<11>, tile<12>, tile<13>, tile<14>};
    for (int r = 0; r < rows; r++) widen(static_cast<const char*>(x) + size_t(r) * x_stride, k, scratch + size_t(r) * k);
    tiles[rows - 1](static_cast<const char*>(panel), k, scratch, out);
}

}  // namespace octavo

#endif
