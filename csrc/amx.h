// Tiles of AMX: eight registers of 16 rows by 64 bytes. Where the compiler targets AMX these are its instructions; with
// OCTAVO_EMULATE_AMX they are plain C++ with the same results, so that kernels can be tested on machines without AMX.
//
// Tile numbers must be literals (0..7), because the compiler's intrinsics paste them into the instruction; hence macros.
#pragma once

#if defined(__AMX_BF16__) || defined(OCTAVO_EMULATE_AMX)
#define OCTAVO_AMX 1

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bf16.h"

namespace octavo {

// Operand of LDTILECFG.
struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void shape(int tile, int tile_rows, int tile_row_bytes) {
        rows[tile] = uint8_t(tile_rows);
        row_bytes[tile] = uint16_t(tile_row_bytes);
    }
};

}  // namespace octavo

#if !defined(OCTAVO_EMULATE_AMX)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace octavo {

// Asks the kernel for the use of tile registers; once a process, before its first tile instruction. False where it refuses.
inline bool amx_allow() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace octavo

#define TILE_CONFIG(config) _tile_loadconfig(config)
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, base, stride) _tile_loadd(t, base, stride)
#define TILE_STREAM(t, base, stride) _tile_stream_loadd(t, base, stride)
#define TILE_STORE(t, base, stride) _tile_stored(t, base, stride)
#define TILE_DPBF16(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_DPBUSD(c, a, b) _tile_dpbusd(c, a, b)
#define TILE_DPBSSD(c, a, b) _tile_dpbssd(c, a, b)

#else

namespace octavo {
namespace emulated {

struct State {
    TileConfig config;
    bool configured = false;
    uint8_t tiles[8][16][64] = {};
};

inline State& state() {
    static thread_local State instance;
    return instance;
}

inline void configure(const TileConfig* config) {
    state().config = *config;
    state().configured = true;
    std::memset(state().tiles, 0, sizeof state().tiles);
}

// Without a configuration every tile instruction faults.
inline void check(int tile) {
    if (!state().configured || state().config.rows[tile] == 0) __builtin_trap();
}

inline void zero(int t) {
    check(t);
    std::memset(state().tiles[t], 0, sizeof state().tiles[t]);
}

inline void load(int t, const void* base, size_t stride) {
    zero(t);
    for (int r = 0; r < state().config.rows[t]; r++)
        std::memcpy(state().tiles[t][r], static_cast<const char*>(base) + size_t(r) * stride, state().config.row_bytes[t]);
}

inline void store(int t, void* base, size_t stride) {
    check(t);
    for (int r = 0; r < state().config.rows[t]; r++)
        std::memcpy(static_cast<char*>(base) + size_t(r) * stride, state().tiles[t][r], state().config.row_bytes[t]);
}

// Shapes of a product: c is [m][n], a [m][k], b [k][n], in elements of four bytes. Others fault.
inline void check_product(int c, int a, int b) {
    check(c), check(a), check(b);
    const TileConfig& config = state().config;
    if (config.rows[a] != config.rows[c] || config.row_bytes[b] != config.row_bytes[c] || config.rows[b] * 4 != config.row_bytes[a])
        __builtin_trap();
}

// Subnormals count as zero, as operands and as results.
inline float flush(float value) { return std::fabs(value) < 1.17549435e-38f ? std::copysign(0.0f, value) : value; }

// Even and odd elements are summed apart from zero, in order, each by a fused multiply-add; then c += (even + odd).
inline void dpbf16(int c, int a, int b) {
    check_product(c, a, b);
    State& s = state();
    for (int m = 0; m < s.config.rows[c]; m++) {
        float even[16] = {}, odd[16] = {}, out[16];
        for (int k = 0; k < s.config.row_bytes[a] / 4; k++) {
            bf16 left[2], right[32];
            std::memcpy(left, s.tiles[a][m] + k * 4, 4);
            std::memcpy(right, s.tiles[b][k], 64);
            const float a0 = flush(bf16_to_float(left[0])), a1 = flush(bf16_to_float(left[1]));
            for (int n = 0; n < 16; n++) {
                even[n] = flush(__builtin_fmaf(a0, flush(bf16_to_float(right[2 * n])), even[n]));
                odd[n] = flush(__builtin_fmaf(a1, flush(bf16_to_float(right[2 * n + 1])), odd[n]));
            }
        }
        std::memcpy(out, s.tiles[c][m], 64);
        for (int n = 0; n < s.config.row_bytes[c] / 4; n++) out[n] = flush(flush(out[n]) + flush(even[n] + odd[n]));
        std::memcpy(s.tiles[c][m], out, 64);
    }
}

template <class Left>
void dpb(int c, int a, int b) {
    check_product(c, a, b);
    State& s = state();
    for (int m = 0; m < s.config.rows[c]; m++) {
        int32_t out[16];
        std::memcpy(out, s.tiles[c][m], 64);
        for (int k = 0; k < s.config.row_bytes[a] / 4; k++)
            for (int n = 0; n < s.config.row_bytes[c] / 4; n++)
                for (int i = 0; i < 4; i++) out[n] += int32_t(Left(s.tiles[a][m][k * 4 + i])) * int32_t(int8_t(s.tiles[b][k][n * 4 + i]));
        std::memcpy(s.tiles[c][m], out, 64);
    }
}

}  // namespace emulated

inline bool amx_allow() { return true; }

}  // namespace octavo

#define TILE_CONFIG(config) ::octavo::emulated::configure(config)
#define TILE_RELEASE() (::octavo::emulated::state().configured = false)
#define TILE_ZERO(t) ::octavo::emulated::zero(t)
#define TILE_LOAD(t, base, stride) ::octavo::emulated::load(t, base, stride)
#define TILE_STREAM(t, base, stride) ::octavo::emulated::load(t, base, stride)
#define TILE_STORE(t, base, stride) ::octavo::emulated::store(t, base, stride)
#define TILE_DPBF16(c, a, b) ::octavo::emulated::dpbf16(c, a, b)
#define TILE_DPBUSD(c, a, b) ::octavo::emulated::dpb<uint8_t>(c, a, b)  // unsigned a, signed b
#define TILE_DPBSSD(c, a, b) ::octavo::emulated::dpb<int8_t>(c, a, b)   // both signed

#endif  // OCTAVO_EMULATE_AMX
#endif
