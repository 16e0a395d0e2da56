// bf16 panels with AVX2: pairs are split into two float32 vectors by a shift and a mask, rows are widened once a tile.
#if defined(__AVX2__) && !defined(__AVX512BF16__)

#include <immintrin.h>

#include "panel.h"

namespace octavo {

namespace {

void widen(const char* from, int k, float* to) {
    for (int i = 0; i < k; i += 8) {
        const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + size_t(i) * 2)));
        _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    }
}

// R rows by V vectors of 8 columns, beginning at `column`.
template <int R, int V>
void tile(const char* panel, int column, int k, const float* x, float* out) {
    __m256 sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) sum[r][v] = _mm256_setzero_ps();
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
    for (int i = 0; i < k; i += 2) {
        const char* pairs = panel + size_t(i) * 64 + column * 4;
        if (R == 1) {
            _mm_prefetch(pairs + 6144, _MM_HINT_T0);
            _mm_prefetch(pairs + 6144 + 64, _MM_HINT_T0);
        }
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) {
            const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs + v * 32));
            const __m256 w0 = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
            const __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                sum[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + size_t(r) * k + i), w0, sum[r][v]);
                sum[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + size_t(r) * k + i + 1), w1, sum[r][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) _mm256_store_ps(out + r * kPanel + column + v * 8, sum[r][v]);
}

}  // namespace

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out, float* scratch) {
    const char* w = static_cast<const char*>(panel);
    for (int r = 0; r < rows; r++) widen(static_cast<const char*>(x) + size_t(r) * x_stride, k, scratch + size_t(r) * k);
    if (rows == 1) return tile<1, 4>(w, 0, k, scratch, out);
    for (int column = 0; column < kPanel; column += 16) {
        if (rows == 2) tile<2, 2>(w, column, k, scratch, out);
        if (rows == 3) tile<3, 2>(w, column, k, scratch, out);
        if (rows == 4) tile<4, 2>(w, column, k, scratch, out);
    }
}

}  // namespace octavo

#endif
