// bf16 panels with TDPBF16PS: up to 32 rows by 32 columns in four accumulator tiles. One row runs the same instructions as 32, in
// tiles of one row, so its result is the same.
#include "amx.h"

#if defined(OCTAVO_AMX)

#include <immintrin.h>

#include "panel.h"

namespace octavo {

namespace {

constexpr int kTileRows = 16;
constexpr size_t kAhead = 6144;            // bytes: hardware prefetchers stop at pages, and an item starts cold
constexpr size_t kStepBytes = 32 * 64;     // of the panel: 32 k
constexpr size_t kPairBytes = kPanel * 4;  // from one row of a weight tile to the next
constexpr size_t kOutBytes = kPanel * 4;

}  // namespace

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    const int upper = rows < kTileRows ? rows : kTileRows, lower = rows - upper;
    TileConfig config;  // 0, 1: upper sums; 2, 3: lower sums; 4, 5: rows of x; 6, 7: weights
    for (int t = 0; t < 8; t++) config.shape(t, kTileRows, 64);
    config.shape(0, upper, 64);
    config.shape(1, upper, 64);
    config.shape(4, upper, 64);
    if (lower > 0) {
        config.shape(2, lower, 64);
        config.shape(3, lower, 64);
        config.shape(5, lower, 64);
    }
    TILE_CONFIG(&config);
    TILE_ZERO(0);
    TILE_ZERO(1);
    const char* w = static_cast<const char*>(panel);
    const char* a = static_cast<const char*>(x);
    if (lower == 0) {
        for (int i = 0; i < k; i += 32, w += kStepBytes, a += 64) {
            for (size_t line = 0; line < kStepBytes; line += 64) _mm_prefetch(w + kAhead + line, _MM_HINT_T0);
            TILE_LOAD(4, a, x_stride);
            TILE_LOAD(6, w, kPairBytes);
            TILE_DPBF16(0, 4, 6);
            TILE_LOAD(7, w + 64, kPairBytes);
            TILE_DPBF16(1, 4, 7);
        }
    } else {
        TILE_ZERO(2);
        TILE_ZERO(3);
        const char* b = a + kTileRows * x_stride;
        for (int i = 0; i < k; i += 32, w += kStepBytes, a += 64, b += 64) {
            TILE_LOAD(4, a, x_stride);
            TILE_LOAD(6, w, kPairBytes);
            TILE_DPBF16(0, 4, 6);
            TILE_LOAD(7, w + 64, kPairBytes);
            TILE_DPBF16(1, 4, 7);
            TILE_LOAD(5, b, x_stride);
            TILE_DPBF16(2, 5, 6);
            TILE_DPBF16(3, 5, 7);
        }
        TILE_STORE(2, out + kTileRows * kPanel, kOutBytes);
        TILE_STORE(3, out + kTileRows * kPanel + 16, kOutBytes);
    }
    TILE_STORE(0, out, kOutBytes);
    TILE_STORE(1, out + 16, kOutBytes);
    TILE_RELEASE();
}

}  // namespace octavo

#endif
