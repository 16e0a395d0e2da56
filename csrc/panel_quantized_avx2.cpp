// Quantised panels with AVX2: VPMADDUBSW of unsigned weights and signed activations, 8 columns at a time.
//
// Its 16-bit sums saturate, so each kind says how many of them may be added before they are widened to 32 bits.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)

#include <immintrin.h>

#include "panel.h"
#include "quantize.h"

namespace octavo {

namespace {

constexpr int kTileRows = 4;
constexpr int kGroups = 8;   // of four k in a block
constexpr int kQuarter = 8;  // columns of one vector

__m256i load(const char* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }
__m256 load_f16(const char* from) { return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from))); }
__m256 load_u8(const char* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
__m256 load_i8(const char* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

// Columns 8q .. 8q+7 of 16-column vectors that begin at `from` for each half of the panel.
const char* quarter_of(const char* from, size_t half_bytes, int q) { return from + size_t(q / 2) * half_bytes + q % 2 * 32; }

void unpack_nibbles(const char* block, int q, __m256i* w) {
    const char* from = quarter_of(block, 256, q);
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 16
    for (int v = 0; v < 4; v++) {
        const __m256i nibbles = load(from + v * 64);
        w[v] = _mm256_and_si256(nibbles, low);
        w[v + 4] = _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low);
    }
}

__m256i product(__m256i w, __m256i x) { return _mm256_maddubs_epi16(w, x); }

// Signed weights: |w| * (x with w's sign). Activations are never -128, so no sign is lost.
__m256i signed_product(__m256i w, __m256i x) { return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }

// As in panel_quantized_avx512.cpp. kAdded: how many products fit 16 bits together.
struct Q4_0 {
    static constexpr int kParts = 1, kAdded = 8;  // 8 * 2 * 15 * 127 = 30480
    static constexpr bool kMinimum = false, kSigned = false;
    static constexpr size_t kBlockBytes = 576;
    static const char* block(const char* panel, int b) { return panel + size_t(b) * kBlockBytes; }
    static void integers(const char* block, int q, __m256i* w) { unpack_nibbles(block, q, w); }
    static void scales(const char*, int, const char* block, int q, __m256* scale, __m256*) { *scale = load_f16(block + 512 + q * 16); }
    static int32_t start(const QuantBlock& x, int) { return x.minus_8_sum; }
};

struct Q4_1 {
    static constexpr int kParts = 1, kAdded = 8;
    static constexpr bool kMinimum = true, kSigned = false;
    static constexpr size_t kBlockBytes = 640;
    static const char* block(const char* panel, int b) { return panel + size_t(b) * kBlockBytes; }
    static void integers(const char* block, int q, __m256i* w) { unpack_nibbles(block, q, w); }
    static void scales(const char*, int, const char* block, int q, __m256* scale, __m256* minimum) {
        *scale = load_f16(block + 512 + q * 16);
        *minimum = load_f16(block + 576 + q * 16);
    }
    static int32_t start(const QuantBlock&, int) { return 0; }
};

struct Q8_0 {
    static constexpr int kParts = 1, kAdded = 1;  // 2 * 128 * 127 = 32512
    static constexpr bool kMinimum = false, kSigned = true;
    static constexpr size_t kBlockBytes = 1088;
    static const char* block(const char* panel, int b) { return panel + size_t(b) * kBlockBytes; }
    static void integers(const char* block, int q, __m256i* w) {
        const __m256i sign = _mm256_set1_epi8(char(0x80));  // stored with 128 added
#pragma GCC unroll 16
        for (int g = 0; g < kGroups; g++) w[g] = _mm256_xor_si256(load(quarter_of(block, 512, q) + g * 64), sign);
    }
    static void scales(const char*, int, const char* block, int q, __m256* scale, __m256*) { *scale = load_f16(block + 1024 + q * 16); }
    static int32_t start(const QuantBlock&, int) { return 0; }
};

struct Q4_K {
    static constexpr int kParts = 1, kAdded = 8;
    static constexpr bool kMinimum = true, kSigned = false;
    static constexpr size_t kBlockBytes = 576;
    static const char* super(const char* panel, int b) { return panel + size_t(b / 8) * (128 + 8 * kBlockBytes); }
    static const char* block(const char* panel, int b) { return super(panel, b) + 128 + size_t(b % 8) * kBlockBytes; }
    static void integers(const char* block, int q, __m256i* w) { unpack_nibbles(block, q, w); }
    static void scales(const char* panel, int b, const char* block, int q, __m256* scale, __m256* minimum) {
        *scale = _mm256_mul_ps(load_f16(super(panel, b) + q * 16), load_u8(block + 512 + q * 8));
        const __m256 negative = _mm256_sub_ps(_mm256_setzero_ps(), load_u8(block + 544 + q * 8));
        *minimum = _mm256_mul_ps(load_f16(super(panel, b) + 64 + q * 16), negative);
    }
    static int32_t start(const QuantBlock&, int) { return 0; }
};

struct Q6_K {
    static constexpr int kParts = 2, kAdded = 2;  // 2 * 2 * 63 * 127 = 32004
    static constexpr bool kMinimum = false, kSigned = false;
    static constexpr size_t kBlockBytes = 832;
    static const char* super(const char* panel, int b) { return panel + size_t(b / 8) * (64 + 8 * kBlockBytes); }
    static const char* block(const char* panel, int b) { return super(panel, b) + 64 + size_t(b % 8) * kBlockBytes; }
    static void integers(const char* block, int q, __m256i* w) {
        unpack_nibbles(block, q, w);
        const __m256i field = _mm256_set1_epi8(0x30);
#pragma GCC unroll 16
        for (int u = 0; u < 2; u++) {
            const __m256i upper = load(quarter_of(block + 512, 128, q) + u * 64);
            w[u * 4 + 0] = _mm256_or_si256(w[u * 4 + 0], _mm256_and_si256(_mm256_slli_epi16(upper, 4), field));
            w[u * 4 + 1] = _mm256_or_si256(w[u * 4 + 1], _mm256_and_si256(_mm256_slli_epi16(upper, 2), field));
            w[u * 4 + 2] = _mm256_or_si256(w[u * 4 + 2], _mm256_and_si256(upper, field));
            w[u * 4 + 3] = _mm256_or_si256(w[u * 4 + 3], _mm256_and_si256(_mm256_srli_epi16(upper, 2), field));
        }
    }
    static void scales(const char* panel, int b, const char* block, int q, __m256* scale, __m256*) {
        const __m256 d = load_f16(super(panel, b) + q * 16);
        scale[0] = _mm256_mul_ps(d, load_i8(block + 768 + q * 8));
        scale[1] = _mm256_mul_ps(d, load_i8(block + 800 + q * 8));
    }
    static int32_t start(const QuantBlock& x, int part) { return x.minus_32_half[part]; }
};

// R rows by Q quarters of the panel, beginning at quarter `first`.
template <class K, int R, int Q>
void tile(const char* panel, int first, int k, const char* x, size_t x_stride, float* out) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sum[R][Q];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int q = 0; q < Q; q++) sum[r][q] = _mm256_setzero_ps();
    for (int b = 0; b < k / kBlock; b++) {
        const char* block = K::block(panel, b);
        if (R == 1)
            for (size_t i = 0; i < K::kBlockBytes; i += 64) _mm_prefetch(block + 6144 + i, _MM_HINT_T0);
#pragma GCC unroll 16
        for (int q = 0; q < Q; q++) {
            __m256i w[kGroups];
            __m256 scale[K::kParts], minimum;
            K::integers(block, first + q, w);
            K::scales(panel, b, block, first + q, scale, &minimum);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                const QuantBlock& a = reinterpret_cast<const QuantBlock*>(x + size_t(r) * x_stride)[b];
                const __m256 activation_scale = _mm256_set1_ps(a.scale);
#pragma GCC unroll 16
                for (int part = 0; part < K::kParts; part++) {
                    __m256i exact = _mm256_set1_epi32(K::start(a, part));
#pragma GCC unroll 16
                    for (int g = part * kGroups / K::kParts; g < (part + 1) * kGroups / K::kParts; g += K::kAdded) {
                        __m256i added = _mm256_setzero_si256();
#pragma GCC unroll 16
                        for (int i = 0; i < K::kAdded; i++) {
                            int four;
                            __builtin_memcpy(&four, a.q + (g + i) * 4, 4);
                            const __m256i x_four = _mm256_set1_epi32(four);
                            const __m256i pairs = K::kSigned ? signed_product(w[g + i], x_four) : product(w[g + i], x_four);
                            added = i == 0 ? pairs : _mm256_add_epi16(added, pairs);
                        }
                        exact = _mm256_add_epi32(exact, _mm256_madd_epi16(added, ones));
                    }
                    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), activation_scale);
                    sum[r][q] = _mm256_fmadd_ps(scale[part], scaled, sum[r][q]);
                }
                if (K::kMinimum) sum[r][q] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(a.scaled_sum), sum[r][q]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int q = 0; q < Q; q++) _mm256_store_ps(out + r * kPanel + (first + q) * kQuarter, sum[r][q]);
}

// One row takes the whole panel in one pass, so that memory is read in order; more leave registers for a quarter only.
template <class K, int R>
void all_quarters(const char* panel, int k, const char* x, size_t x_stride, float* out) {
    if constexpr (R == 1) {
        tile<K, R, 4>(panel, 0, k, x, x_stride, out);
    } else {
#pragma GCC unroll 16
        for (int q = 0; q < 4; q++) tile<K, R, 1>(panel, q, k, x, x_stride, out);
    }
}

template <class K>
void any_rows(const char* panel, int k, const char* x, size_t x_stride, int rows, float* out) {
    using Tile = void (*)(const char*, int, const char*, size_t, float*);
    static constexpr Tile tiles[kTileRows] = {all_quarters<K, 1>, all_quarters<K, 2>, all_quarters<K, 3>, all_quarters<K, 4>};
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
