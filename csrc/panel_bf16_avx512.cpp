// bf16 panels with VDPBF16PS: a tile of up to 14 rows by 2 vectors of 16 columns, 28 accumulators, one broadcast for two products.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__) && !defined(OCTAVO_EMULATE_AMX)

#include <immintrin.h>

#include "panel.h"

namespace octavo {

namespace {

constexpr int kTileRows = 14;
constexpr size_t kAhead = 6144;  // bytes: hardware prefetchers stop at pages, and an item starts cold

template <int R>
void tile(const char* panel, int k, const char* x, size_t x_stride, float* out) {
    __m512 sum[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    const char* rows[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) rows[r] = x + size_t(r) * x_stride;
    for (int i = 0; i < k / 2; i++) {
        _mm_prefetch(panel + kAhead, _MM_HINT_T0);
        _mm_prefetch(panel + kAhead + 64, _MM_HINT_T0);
        const __m512bh w0 = __m512bh(_mm512_load_si512(panel));
        const __m512bh w1 = __m512bh(_mm512_load_si512(panel + 64));
        panel += 128;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            int pair;
            __builtin_memcpy(&pair, rows[r] + size_t(i) * 4, 4);
            const __m512bh a = __m512bh(_mm512_set1_epi32(pair));
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], a, w0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], a, w1);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        _mm512_store_ps(out + r * kPanel, sum[r][0]);
        _mm512_store_ps(out + r * kPanel + 16, sum[r][1]);
    }
}

}  // namespace

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    using Tile = void (*)(const char*, int, const char*, size_t, float*);
    static constexpr Tile tiles[kTileRows] = {tile<1>, tile<2>, tile<3>,  tile<4>,  tile<5>,  tile<6>,  tile<7>,
                                              tile<8>, tile<9>, tile<10>, tile<11>, tile<12>, tile<13>, tile<14>};
    tiles[rows - 1](static_cast<const char*>(panel), k, static_cast<const char*>(x), x_stride, out);
}

}  // namespace octavo

#endif
