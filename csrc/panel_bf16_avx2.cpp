// bf16 panels with AVX2: pairs are split into two float32 vectors by a shift and a mask, rows are widened once a layer.
#if defined(__AVX2__) && !defined(__AVX512F__)

#include <immintrin.h>

#include "panel.h"

namespace octavo {

namespace {

constexpr size_t kAhead = 6144;  // bytes: hardware prefetchers stop at pages, and an item starts cold

__m256i load(const char* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }

// R rows by V vectors of 8 columns, beginning at `column`. Six rows by two vectors: 12 accumulators, 2 weights, a broadcast, the mask.
template <int R, int V>
void tile(const char* panel, int column, int k, const float* x, size_t x_stride, float* out) {
    __m256 sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) sum[r][v] = _mm256_setzero_ps();
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
    const char* pairs = panel + column * 4;
    for (int i = 0; i < k; i += 2, pairs += kPanel * 4) {
        if (column == 0) {
            _mm_prefetch(pairs + kAhead, _MM_HINT_T0);
            _mm_prefetch(pairs + kAhead + 64, _MM_HINT_T0);
        }
        __m256 w[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) w[v] = _mm256_castsi256_ps(_mm256_slli_epi32(load(pairs + v * 32), 16));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m256 a = _mm256_broadcast_ss(x + size_t(r) * x_stride + i);
#pragma GCC unroll 16
            for (int v = 0; v < V; v++) sum[r][v] = _mm256_fmadd_ps(a, w[v], sum[r][v]);
        }
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) w[v] = _mm256_castsi256_ps(_mm256_and_si256(load(pairs + v * 32), upper));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m256 a = _mm256_broadcast_ss(x + size_t(r) * x_stride + i + 1);
#pragma GCC unroll 16
            for (int v = 0; v < V; v++) sum[r][v] = _mm256_fmadd_ps(a, w[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) _mm256_store_ps(out + r * kPanel + column + v * 8, sum[r][v]);
}

template <int R>
void both_halves(const char* panel, int k, const float* x, size_t x_stride, float* out) {
    tile<R, 2>(panel, 0, k, x, x_stride, out);
    tile<R, 2>(panel, 16, k, x, x_stride, out);
}

}  // namespace

size_t bf16_prepared_bytes(int k) { return size_t(k) * sizeof(float); }

void bf16_prepare(const void* x, int k, void* prepared) {
    const char* from = static_cast<const char*>(x);
    float* to = static_cast<float*>(prepared);
    for (int i = 0; i < k; i += 8) {
        const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + size_t(i) * 2)));
        _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    }
}

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    const char* w = static_cast<const char*>(panel);
    const float* a = static_cast<const float*>(x);
    const size_t stride = x_stride / sizeof(float);
    switch (rows) {
        case 1: return tile<1, 4>(w, 0, k, a, stride, out);  // one pass, so that memory is read in order
        case 2: return both_halves<2>(w, k, a, stride, out);
        case 3: return both_halves<3>(w, k, a, stride, out);
        case 4: return both_halves<4>(w, k, a, stride, out);
        case 5: return both_halves<5>(w, k, a, stride, out);
        default: return both_halves<6>(w, k, a, stride, out);
    }
}

}  // namespace octavo

#endif
