// Quantised panels with VPDPBUSD: weights as unsigned bytes, activations as signed bytes broadcast four at a time.
//
// A block of 32 k and 16 columns is unpacked into eight vectors once and multiplied with every row of the tile. The integer
// accumulation starts at -zero * (sum of the activations), so that weights need not be made signed.
//
// AMX builds use this file too: integer tiles would have to be stored after every 32 k for their sums to be scaled.
#if defined(__AVX512VNNI__)

#include <immintrin.h>

#include "panel.h"
#include "quantize.h"

namespace octavo {

namespace {

constexpr int kTileRows = 14;
constexpr int kGroups = 8;  // of four k in a block

constexpr size_t kAhead = 6144;  // bytes: hardware prefetchers stop at pages, and an item starts cold

__m512 load_f16(const char* from) { return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from))); }

__m512 load_u8(const char* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
}

__m512 load_i8(const char* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
}

void unpack_nibbles(const char* from, __m512i* w) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 16
    for (int v = 0; v < 4; v++) {
        const __m512i nibbles = _mm512_load_si512(from + v * 64);
        w[v] = _mm512_and_si512(nibbles, low);
        w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low);
    }
}

// What a kind adds to the loop over blocks: where a block lies, its integers, its scales, and where the integer sums start.
// `half` chooses 16 of the panel's columns. kParts: how many scales a block has along k.
struct Q4_0 {
    static constexpr int kParts = 1;
    static constexpr bool kMinimum = false;
    static constexpr size_t kBlockBytes = 576;
    static const char* block(const char* panel, int b) { return panel + size_t(b) * kBlockBytes; }
    static void integers(const char* block, int half, __m512i* w) { unpack_nibbles(block + half * 256, w); }
    static void scales(const char*, int, const char* block, int half, __m512* scale, __m512*) { *scale = load_f16(block + 512 + half * 32); }
    static int32_t start(const QuantBlock& x, int) { return x.minus_8_sum; }
};

struct Q4_1 {
    static constexpr int kParts = 1;
    static constexpr bool kMinimum = true;
    static constexpr size_t kBlockBytes = 640;
    static const char* block(const char* panel, int b) { return panel + size_t(b) * kBlockBytes; }
    static void integers(const char* block, int half, __m512i* w) { unpack_nibbles(block + half * 256, w); }
    static void scales(const char*, int, const char* block, int half, __m512* scale, __m512* minimum) {
        *scale = load_f16(block + 512 + half * 32);
        *minimum = load_f16(block + 576 + half * 32);
    }
    static int32_t start(const QuantBlock&, int) { return 0; }
};

struct Q8_0 {
    static constexpr int kParts = 1;
    static constexpr bool kMinimum = false;
    static constexpr size_t kBlockBytes = 1088;
    static const char* block(const char* panel, int b) { return panel + size_t(b) * kBlockBytes; }
    static void integers(const char* block, int half, __m512i* w) {
#pragma GCC unroll 16
        for (int g = 0; g < kGroups; g++) w[g] = _mm512_load_si512(block + half * 512 + g * 64);
    }
    static void scales(const char*, int, const char* block, int half, __m512* scale, __m512*) { *scale = load_f16(block + 1024 + half * 32); }
    static int32_t start(const QuantBlock& x, int) { return x.minus_128_sum; }
};

struct Q4_K {
    static constexpr int kParts = 1;
    static constexpr bool kMinimum = true;
    static constexpr size_t kBlockBytes = 576;
    static const char* super(const char* panel, int b) { return panel + size_t(b / 8) * (128 + 8 * kBlockBytes); }
    static const char* block(const char* panel, int b) { return super(panel, b) + 128 + size_t(b % 8) * kBlockBytes; }
    static void integers(const char* block, int half, __m512i* w) { unpack_nibbles(block + half * 256, w); }
    static void scales(const char* panel, int b, const char* block, int half, __m512* scale, __m512* minimum) {
        *scale = _mm512_mul_ps(load_f16(super(panel, b) + half * 32), load_u8(block + 512 + half * 16));
        const __m512 negative = _mm512_sub_ps(_mm512_setzero_ps(), load_u8(block + 544 + half * 16));
        *minimum = _mm512_mul_ps(load_f16(super(panel, b) + 64 + half * 32), negative);
    }
    static int32_t start(const QuantBlock&, int) { return 0; }
};

struct Q6_K {
    static constexpr int kParts = 2;
    static constexpr bool kMinimum = false;
    static constexpr size_t kBlockBytes = 832;
    static const char* super(const char* panel, int b) { return panel + size_t(b / 8) * (64 + 8 * kBlockBytes); }
    static const char* block(const char* panel, int b) { return super(panel, b) + 64 + size_t(b % 8) * kBlockBytes; }
    static void integers(const char* block, int half, __m512i* w) {
        unpack_nibbles(block + half * 256, w);
        const __m512i field = _mm512_set1_epi8(0x30);
#pragma GCC unroll 16
        for (int u = 0; u < 2; u++) {
            const __m512i upper = _mm512_load_si512(block + 512 + half * 128 + u * 64);
            w[u * 4 + 0] = _mm512_or_si512(w[u * 4 + 0], _mm512_and_si512(_mm512_slli_epi16(upper, 4), field));
            w[u * 4 + 1] = _mm512_or_si512(w[u * 4 + 1], _mm512_and_si512(_mm512_slli_epi16(upper, 2), field));
            w[u * 4 + 2] = _mm512_or_si512(w[u * 4 + 2], _mm512_and_si512(upper, field));
            w[u * 4 + 3] = _mm512_or_si512(w[u * 4 + 3], _mm512_and_si512(_mm512_srli_epi16(upper, 2), field));
        }
    }
    static void scales(const char* panel, int b, const char* block, int half, __m512* scale, __m512*) {
        const __m512 d = load_f16(super(panel, b) + half * 32);
        scale[0] = _mm512_mul_ps(d, load_i8(block + 768 + half * 16));
        scale[1] = _mm512_mul_ps(d, load_i8(block + 800 + half * 16));
    }
    static int32_t start(const QuantBlock& x, int part) { return x.minus_32_half[part]; }
};

// Group g of a block of activations, in all lanes.
__m512i four(const QuantBlock& x, int g) {
    int bytes;
    __builtin_memcpy(&bytes, x.q + g * 4, 4);
    return _mm512_set1_epi32(bytes);
}

// R rows by H halves of the panel, beginning at half `first`.
template <class K, int R, int H>
void tile(const char* panel, int first, int k, const char* x, size_t x_stride, float* out) {
    __m512 sum[R][H];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int h = 0; h < H; h++) sum[r][h] = _mm512_setzero_ps();
    const char* rows[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) rows[r] = x + size_t(r) * x_stride;
    for (int b = 0; b < k / kBlock; b++) {
        const char* block = K::block(panel, b);
        if (first == 0)
            for (size_t i = 0; i < K::kBlockBytes; i += 64) _mm_prefetch(block + kAhead + i, _MM_HINT_T0);
#pragma GCC unroll 16
        for (int h = 0; h < H; h++) {
            __m512i w[kGroups];
            __m512 scale[K::kParts], minimum;
            K::integers(block, first + h, w);
            K::scales(panel, b, block, first + h, scale, &minimum);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                const QuantBlock& a = reinterpret_cast<const QuantBlock*>(rows[r])[b];
                const __m512 activation_scale = _mm512_set1_ps(a.scale);
#pragma GCC unroll 16
                for (int part = 0; part < K::kParts; part++) {
                    // Two chains: integers may be added in any order, and a chain of eight products would wait for itself.
                    __m512i exact = _mm512_set1_epi32(K::start(a, part)), other = _mm512_setzero_si512();
                    const int begin = part * kGroups / K::kParts, end = (part + 1) * kGroups / K::kParts;
#pragma GCC unroll 16
                    for (int g = begin; g < end; g += 2) {
                        exact = _mm512_dpbusd_epi32(exact, w[g], four(a, g));
                        other = _mm512_dpbusd_epi32(other, w[g + 1], four(a, g + 1));
                    }
                    exact = _mm512_add_epi32(exact, other);
                    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), activation_scale);
                    sum[r][h] = _mm512_fmadd_ps(scale[part], scaled, sum[r][h]);
                }
                if (K::kMinimum) sum[r][h] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(a.scaled_sum), sum[r][h]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int h = 0; h < H; h++) _mm512_store_ps(out + r * kPanel + (first + h) * 16, sum[r][h]);
}

// Few rows take both halves of a block in one pass, so that memory is read in order; many leave registers for one half only.
template <class K, int R>
void both_halves(const char* panel, int k, const char* x, size_t x_stride, float* out) {
    if constexpr (R <= 6) {
        tile<K, R, 2>(panel, 0, k, x, x_stride, out);
    } else {
        tile<K, R, 1>(panel, 0, k, x, x_stride, out);
        tile<K, R, 1>(panel, 1, k, x, x_stride, out);
    }
}

template <class K>
void any_rows(const char* panel, int k, const char* x, size_t x_stride, int rows, float* out) {
    using Tile = void (*)(const char*, int, const char*, size_t, float*);
    static constexpr Tile tiles[kTileRows] = {
        both_halves<K, 1>, both_halves<K, 2>, both_halves<K, 3>,  both_halves<K, 4>,  both_halves<K, 5>,  both_halves<K, 6>,  both_halves<K, 7>,
        both_halves<K, 8>, both_halves<K, 9>, both_halves<K, 10>, both_halves<K, 11>, both_halves<K, 12>, both_halves<K, 13>, both_halves<K, 14>};
    tiles[rows - 1](panel, k, x, x_stride, out);
}

}  // namespace

void quantized_panel(Kind kind, const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    const char* w = static_cast<const char*>(panel);
    const char* a = static_cast<const char*>(x);
    switch (kind) {
        case Kind::kQ4_0: return any_rows<Q4_0>(w, k, a, x_stride, rows, out);
        case Kind::kQ4_1: return any_rows<Q4_1>(w, k, a, x_stride, rows, out);
        case Kind::kQ8_0: return any_rows<Q8_0>(w, k, a, x_stride, rows, out);
        case Kind::kQ4_K: return any_rows<Q4_K>(w, k, a, x_stride, rows, out);
        case Kind::kQ6_K: return any_rows<Q6_K>(w, k, a, x_stride, rows, out);
        default: return;
    }
}

}  // namespace octavo

#endif
