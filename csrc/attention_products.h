// The two products of attention over one tile of tokens, and the packed forms of queries, keys, values and probabilities that they
// read. One variant per ISA, all with the same members; the rest of attention is written once, on `Products`.
//
// Every score is one chain of additions over the head's dimensions, every output one chain over the tile's tokens, whatever the
// number of rows. Callers may leave out tokens at either end of a tile: their probabilities are zero and would add nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "amx.h"
#include "bf16.h"
#include "exp.h"
#include "kv_view.h"
#include "lanes.h"

namespace octavo {

constexpr int kTile = 128;      // tokens of a tile; tiles begin at multiples of it
constexpr int kNearRows = 16;   // rows that direct reading brings into the L1 cache ahead of itself
constexpr int kTokenStep = 32;  // products work on whole steps of this many tokens

// Always inlined: as a function of its own it would count as one without effect, and GCC leaves out calls of those.
__attribute__((always_inline)) inline void prefetch_near(const char* address) { __builtin_prefetch(address, 0, 3); }
__attribute__((always_inline)) inline void prefetch_far(const char* address) { __builtin_prefetch(address, 0, 2); }

// Brings the rows of the next tile into the cache, a few lines at a time, while this one is computed. That makes the speed of
// reading independent of where the rows lie.
class Prefetcher {
public:
    Prefetcher() = default;  // of nothing
    Prefetcher(const char* const* rows, int count, int64_t offset, int lines)
        : row_(rows), end_(rows + count), offset_(offset), lines_(lines) {}

    void step(int lines) {
        for (; lines > 0 && row_ != end_; --lines) {
            prefetch_far(*row_ + offset_ + line_ * 64);
            if (++line_ == lines_) {
                line_ = 0;
                ++row_;
            }
        }
    }

private:
    const char* const* row_ = nullptr;
    const char* const* end_ = nullptr;
    int64_t offset_ = 0;
    int lines_ = 0;
    int line_ = 0;
};

// Calls body with `count` as a constant: so that what is computed together stays in registers.
template <int low, int high, class Body>
inline void with_rows(int count, Body&& body) {
    if constexpr (low == high) {
        body(std::integral_constant<int, low>{});
    } else {
        if (count == low) return body(std::integral_constant<int, low>{});
        with_rows<low + 1, high>(count, body);
    }
}

#if defined(__AVX512BF16__)

// Products in bfloat16 with float32 sums (VDPBF16PS). Probabilities are rounded to bfloat16; their sum is that of the rounded ones.
struct Bf16Products {
    using Packed = bf16;
    struct Session {  // what a thread holds while it computes
        Session() {}
    };
    static constexpr int kStrip = 6;                                     // rows computed together
    static int padded(int head_dim) { return (head_dim + 31) / 32 * 32; }  // dimensions are padded with zeros

    // [padded]
    static void pack_query(const bf16* query, int head_dim, Packed* packed) {
        std::memcpy(packed, query, size_t(head_dim) * 2);
        std::memset(packed + head_dim, 0, size_t(padded(head_dim) - head_dim) * 2);
    }

    // Keys as [block of 16 tokens][pair of dimensions][16 tokens][2]: a vector holds one pair of dimensions of 16 tokens.
    // rows[t] + offset is where the head's dimensions of the tile's token begin + t are. begin and end are multiples of kTokenStep.
    template <KvKind kind>
    static void pack_keys(const char* const* rows, int64_t offset, int head_dim, int begin, int end, Packed* packed, Prefetcher& next) {
        const int width = padded(head_dim);
        const int lines = head_dim / 4 * (kind == KvKind::kBf16 ? 2 : 1);
        for (int token = begin; token < end; token += 16, rows += 16) {
            Packed* out = packed + int64_t(token) * width;
            int dim = 0;
            for (; dim + 32 <= head_dim; dim += 32) pack_key_block<kind, 32>(rows, offset, dim, out + dim * 16);
            if (dim < head_dim) pack_key_block<kind, 16>(rows, offset, dim, out + dim * 16);
            next.step(lines);
        }
    }

    // Values as [pair of tokens][padded][2], the dimensions of each 32 in the order that unpacking leaves them in: see finish.
    template <KvKind kind>
    static void pack_values(const char* const* rows, int64_t offset, int head_dim, int begin, int end, Packed* packed, Prefetcher& next) {
        const int width = padded(head_dim);
        const int lines = head_dim / 4 * (kind == KvKind::kBf16 ? 2 : 1);
        for (int token = begin; token < end; token += 16, rows += 16) {
            Packed* out = packed + int64_t(token) * width;
            int dim = 0;
            for (; dim + 32 <= head_dim; dim += 32) pack_value_block<kind, 32>(rows, offset, dim, width, out + dim * 2);
            if (dim < head_dim) pack_value_block<kind, 16>(rows, offset, dim, width, out + dim * 2);
            next.step(lines);
        }
    }

    // scores[row][token] = query . key for tokens [begin, end).
    static void scores(const Packed* queries, int rows, const Packed* keys, int head_dim, int begin, int end, float* scores) {
        with_rows<1, kStrip>(rows, [&](auto count) { score_rows<count.value>(queries, keys, padded(head_dim), begin, end, scores); });
    }

    // Takes the probabilities of one row for a step of tokens; returns `sum` plus theirs, in whatever lanes.
    static Lanes put_probabilities(const Lanes* p, Packed* packed, Lanes sum) {
        const __m512bh pair = _mm512_cvtne2ps_pbh(p[1].v, p[0].v);
        std::memcpy(packed, &pair, sizeof pair);
        return {_mm512_dpbf16_ps(sum.v, pair, (__m512bh)_mm512_set1_epi16(0x3f80))};
    }

    // out[row][dim] = sum over tokens [begin, end) of probability times value.
    static void weigh(const Packed* probabilities, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        with_rows<1, kStrip>(rows, [&](auto count) { weigh_rows<count.value>(probabilities, values, padded(head_dim), begin, end, out, ld); });
    }

    // A few rows of each head (a decoding query's group) read keys and values where they lie: the same sums in the same order as from
    // packed tiles, without writing and reading those. Memory is read in its own order: all heads of some tokens, then the next
    // tokens. rows[t] belongs to token begin + t; what is read next follows in `rows`. While a row is read, one kNearRows further on is
    // brought into the L1 cache, and the one as far on as this part is long (values for keys, the next tile's keys for values) into
    // the L2 cache: the one alone leaves memory idle, the other alone leaves the L1 cache waiting. int8 rows have scales at scale_offset,
    // which are brought along.
    static constexpr int kDirectRows = 8;

    // queries: [heads][count][padded]; scores: [heads][count][kTile].
    template <KvKind kind>
    static void scores_direct(const Packed* queries, int count, int heads, const char* const* rows, int64_t offset, int64_t head_stride,
                              int64_t scale_offset, int head_dim, int begin, int end, float* scores) {
        with_rows<1, kDirectRows>(count, [&](auto constant) {
            constexpr int kRows = decltype(constant)::value;
            const int width = padded(head_dim);
            const char* const* far = rows + (end - begin);
            for (int token = begin; token < end; token += 16, rows += 16, far += 16) {
                if (kind == KvKind::kInt8) {
                    for (int i = 0; i < 16; ++i) prefetch_far(far[i] + scale_offset);
                }
                for (int h = 0; h < heads; ++h) {
                    const Packed* query = queries + h * kRows * width;
                    __m512 sum[kRows];
                    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
                    const int64_t at = offset + h * head_stride;
                    int dim = 0;
                    for (; dim + 32 <= head_dim; dim += 32) score_key_block<kind, 32, kRows>(query + dim, width, rows, far, at, dim, sum);
                    if (dim < head_dim) score_key_block<kind, 16, kRows>(query + dim, width, rows, far, at, dim, sum);
                    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(scores + (h * kRows + r) * kTile + token, sum[r]);
                }
            }
        });
    }

    // p: [heads][count][kTile]; out: [heads][count][ld].
    template <KvKind kind>
    static void weigh_direct(const Packed* p, int count, int heads, const char* const* rows, int64_t offset, int64_t head_stride,
                             int64_t scale_offset, int head_dim, int begin, int end, float* out, int ld) {
        with_rows<1, kDirectRows>(count, [&](auto constant) {
            constexpr int kRows = decltype(constant)::value;
            constexpr int kBlocks = kRows <= 6 ? 2 : 1;
            const char* const* far = rows + (end - begin);
            for (int token = begin; token < end; token += kTokenStep, rows += kTokenStep, far += kTokenStep) {
                const bool first = token == begin;
                if (kind == KvKind::kInt8) {
                    for (int i = 0; i < kTokenStep; ++i) prefetch_far(far[i] + scale_offset);
                }
                for (int h = 0; h < heads; ++h) {
                    const Packed* weights = p + h * kRows * kTile + token;
                    float* to = out + int64_t(h) * kRows * ld;
                    const int64_t at = offset + h * head_stride;
                    int dim = 0;
                    for (; dim + 32 * kBlocks <= head_dim; dim += 32 * kBlocks) {
                        weigh_value_block<kind, 32, kRows, kBlocks>(weights, rows, far, at, dim, first, to + dim, ld);
                    }
                    for (; dim + 32 <= head_dim; dim += 32) {
                        weigh_value_block<kind, 32, kRows, 1>(weights, rows, far, at, dim, first, to + dim, ld);
                    }
                    if (dim < head_dim) weigh_value_block<kind, 16, kRows, 1>(weights, rows, far, at, dim, first, to + dim, ld);
                }
            }
        });
    }

    // Writes factor * out in the natural order of dimensions. + 0 turns -0 into 0: which tokens were left out must not show.
    static void finish(const float* out, float factor, int head_dim, bf16* target) {
        const __m512 scale = _mm512_set1_ps(factor), zero = _mm512_setzero_ps();
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        for (int dim = 0; dim < head_dim; dim += 32) {
            const __m512 low = _mm512_fmadd_ps(_mm512_loadu_ps(out + dim), scale, zero);
            const __m512 high = _mm512_fmadd_ps(_mm512_loadu_ps(out + dim + 16), scale, zero);
            const __m512 a = _mm512_permutex2var_ps(low, first, high), b = _mm512_permutex2var_ps(low, second, high);
            const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
            _mm512_mask_storeu_epi16(target + dim, head_dim - dim >= 32 ? 0xffffffffu : 0xffffu, (__m512i)both);
        }
    }

private:
    // `count` (32 or 16) dimensions of a token as bfloat16, zeros behind them.
    template <KvKind kind, int count>
    static __m512i load_dims(const char* from) {
        if constexpr (kind == KvKind::kBf16) {
            if constexpr (count == 32) return _mm512_loadu_si512(from);
            return _mm512_maskz_loadu_epi16(0xffffu, from);
        } else {
            const __m128i* bytes = reinterpret_cast<const __m128i*>(from);
            const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
            const __m512 high = count == 32 ? _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1))) : _mm512_setzero_ps();
            return (__m512i)_mm512_cvtne2ps_pbh(high, low);  // exact: an int8 fits a bfloat16
        }
    }

    template <KvKind kind, int count>
    static void pack_key_block(const char* const* rows, int64_t offset, int dim, Packed* out) {
        offset += dim * (kind == KvKind::kBf16 ? 2 : 1);
        __m512i block[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) block[i] = load_dims<kind, count>(rows[i] + offset);
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 32, block[i]);
    }

    template <KvKind kind, int count>
    static void pack_value_block(const char* const* rows, int64_t offset, int dim, int width, Packed* out) {
        offset += dim * (kind == KvKind::kBf16 ? 2 : 1);
#pragma GCC unroll 8
        for (int i = 0; i < 16; i += 2) {
            const __m512i even = load_dims<kind, count>(rows[i] + offset);
            const __m512i odd = load_dims<kind, count>(rows[i + 1] + offset);
            _mm512_store_si512(out + i * width, _mm512_unpacklo_epi16(even, odd));
            _mm512_store_si512(out + i * width + 32, _mm512_unpackhi_epi16(even, odd));
        }
    }

    // 16 rows of 16 32-bit values become 16 columns.
    __attribute__((always_inline)) static void transpose(__m512i* r) {
        __m512i t[16];
#pragma GCC unroll 8
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += 4) {
            r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
            r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
            r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
            r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        // r[4 a + c] holds, in 128-bit lane l, column 4 l + c of rows 4 a .. 4 a + 3.
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
            t[4 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
            t[8 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
            t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            r[c] = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
            r[8 + c] = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
            r[4 + c] = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
            r[12 + c] = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
        }
    }

    static __m512bh broadcast_pair(const Packed* pair) {
        int32_t bits;
        std::memcpy(&bits, pair, 4);
        return (__m512bh)_mm512_set1_epi32(bits);
    }

    static __m512bh load_pairs(const Packed* pairs) { return (__m512bh)_mm512_load_si512(pairs); }

    template <KvKind kind, int count, int rows>
    __attribute__((always_inline)) static void score_key_block(const Packed* queries, int width, const char* const* keys,
                                                               const char* const* far, int64_t offset, int dim, __m512* sum) {
        offset += dim * (kind == KvKind::kBf16 ? 2 : 1);
        __m512i block[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            block[i] = load_dims<kind, count>(keys[i] + offset);
            prefetch_near(keys[i + kNearRows] + offset);
            prefetch_far(far[i] + offset);
        }
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                sum[r] = _mm512_dpbf16_ps(sum[r], (__m512bh)block[i], broadcast_pair(queries + r * width + i * 2));
            }
        }
    }

    // Adds kTokenStep tokens to `out`; starts it, where they are the first.
    template <KvKind kind, int count, int rows, int blocks>
    __attribute__((always_inline)) static void weigh_value_block(const Packed* p, const char* const* values, const char* const* far,
                                                                 int64_t offset, int dim, bool first, float* out, int ld) {
        constexpr int kBytes = kind == KvKind::kBf16 ? 2 : 1;
        __m512 sum[rows][blocks * 2];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int b = 0; b < blocks * 2; ++b) sum[r][b] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + int64_t(r) * ld + b * 16);
        }
        for (int token = 0; token < kTokenStep; token += 2) {
            __m512bh value[blocks * 2];
#pragma GCC unroll 2
            for (int b = 0; b < blocks; ++b) {
                const int64_t at = offset + (dim + b * 32) * kBytes;
                const __m512i even = load_dims<kind, count>(values[token] + at);
                const __m512i odd = load_dims<kind, count>(values[token + 1] + at);
                value[b * 2] = (__m512bh)_mm512_unpacklo_epi16(even, odd);
                value[b * 2 + 1] = (__m512bh)_mm512_unpackhi_epi16(even, odd);
                prefetch_near(values[token + kNearRows] + at);
                prefetch_near(values[token + kNearRows + 1] + at);
                prefetch_far(far[token] + at);
                prefetch_far(far[token + 1] + at);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const __m512bh weight = broadcast_pair(p + r * kTile + token);
#pragma GCC unroll 4
                for (int b = 0; b < blocks * 2; ++b) sum[r][b] = _mm512_dpbf16_ps(sum[r][b], value[b], weight);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int b = 0; b < blocks * 2; ++b) _mm512_storeu_ps(out + int64_t(r) * ld + b * 16, sum[r][b]);
        }
    }

    template <int rows>
    static void score_rows(const Packed* queries, const Packed* keys, int width, int begin, int end, float* scores) {
        int token = begin;
        for (; token + 64 <= end; token += 64) score_block<rows, 4>(queries, keys + int64_t(token) * width, width, scores + token);
        if (token < end) score_block<rows, 2>(queries, keys + int64_t(token) * width, width, scores + token);
    }

    template <int rows, int blocks>
    static void score_block(const Packed* queries, const Packed* keys, int width, float* scores) {
        __m512 sum[rows][blocks];
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_setzero_ps();
        }
        for (int dim = 0; dim < width; dim += 2) {
            __m512bh key[blocks];
            for (int b = 0; b < blocks; ++b) key[b] = load_pairs(keys + b * 16 * width + dim * 16);
            for (int r = 0; r < rows; ++r) {
                const __m512bh query = broadcast_pair(queries + r * width + dim);
                for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_dpbf16_ps(sum[r][b], key[b], query);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) _mm512_storeu_ps(scores + r * kTile + b * 16, sum[r][b]);
        }
    }

    template <int rows>
    static void weigh_rows(const Packed* p, const Packed* values, int width, int begin, int end, float* out, int ld) {
        int dim = 0;
        for (; dim + 64 <= width; dim += 64) weigh_block<rows, 4>(p, values + dim * 2, width, begin, end, out + dim, ld);
        if (dim < width) weigh_block<rows, 2>(p, values + dim * 2, width, begin, end, out + dim, ld);
    }

    template <int rows, int blocks>
    static void weigh_block(const Packed* p, const Packed* values, int width, int begin, int end, float* out, int ld) {
        __m512 sum[rows][blocks];
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_setzero_ps();
        }
        for (int token = begin; token < end; token += 2) {
            __m512bh value[blocks];
            for (int b = 0; b < blocks; ++b) value[b] = load_pairs(values + int64_t(token) * width + b * 32);
            for (int r = 0; r < rows; ++r) {
                const __m512bh weight = broadcast_pair(p + r * kTile + token);
                for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_dpbf16_ps(sum[r][b], value[b], weight);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) _mm512_storeu_ps(out + int64_t(r) * ld + b * 16, sum[r][b]);
        }
    }
};

#if defined(OCTAVO_AMX)

// Both products on AMX tiles, on the same packed forms. A strip is as many rows as a tile has; rows that are not there are computed
// from whatever lies in memory and left out. Decoding goes the same way: a tile's row is the same sum whatever the others hold.
struct AmxProducts : Bf16Products {
    static constexpr int kStrip = 16;
    static constexpr int kDirectRows = 0;

    struct Session {
        Session() {
            TileConfig config;
            for (int tile = 0; tile < 8; ++tile) config.shape(tile, 16, 64);
            TILE_CONFIG(&config);
        }
        ~Session() { TILE_RELEASE(); }
    };

    static void scores(const Packed* queries, int, const Packed* keys, int head_dim, int begin, int end, float* scores) {
        const int width = padded(head_dim);
        int token = begin;
        for (; token + 64 <= end; token += 64) {
            const Packed* block = keys + int64_t(token) * width;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            for (int dim = 0; dim < width; dim += 32) {
                TILE_LOAD(4, queries + dim, width * 2);
                TILE_LOAD(5, block + dim * 16, 64);
                TILE_DPBF16(0, 4, 5);
                TILE_LOAD(6, block + 16 * width + dim * 16, 64);
                TILE_DPBF16(1, 4, 6);
                TILE_LOAD(5, block + 32 * width + dim * 16, 64);
                TILE_DPBF16(2, 4, 5);
                TILE_LOAD(6, block + 48 * width + dim * 16, 64);
                TILE_DPBF16(3, 4, 6);
            }
            TILE_STORE(0, scores + token, kTile * 4);
            TILE_STORE(1, scores + token + 16, kTile * 4);
            TILE_STORE(2, scores + token + 32, kTile * 4);
            TILE_STORE(3, scores + token + 48, kTile * 4);
        }
        if (token < end) {
            const Packed* block = keys + int64_t(token) * width;
            TILE_ZERO(0);
            TILE_ZERO(1);
            for (int dim = 0; dim < width; dim += 32) {
                TILE_LOAD(4, queries + dim, width * 2);
                TILE_LOAD(5, block + dim * 16, 64);
                TILE_DPBF16(0, 4, 5);
                TILE_LOAD(6, block + 16 * width + dim * 16, 64);
                TILE_DPBF16(1, 4, 6);
            }
            TILE_STORE(0, scores + token, kTile * 4);
            TILE_STORE(1, scores + token + 16, kTile * 4);
        }
    }

    static void weigh(const Packed* p, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        const int width = padded(head_dim);
        alignas(64) float whole[16 * 64];
        for (int dim = 0; dim < width; dim += 64) {
            const bool four = dim + 64 <= width;  // of 16 dimensions each; else two
            // Rows beyond the last would overwrite what is not theirs.
            float* to = rows == 16 ? out + dim : whole;
            const int to_ld = rows == 16 ? ld : 64;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            for (int token = begin; token < end; token += 32) {
                const Packed* pairs = values + int64_t(token) * width + dim * 2;
                TILE_LOAD(4, p + token, kTile * 2);
                TILE_LOAD(5, pairs, width * 4);
                TILE_DPBF16(0, 4, 5);
                TILE_LOAD(6, pairs + 32, width * 4);
                TILE_DPBF16(1, 4, 6);
                if (four) {
                    TILE_LOAD(5, pairs + 64, width * 4);
                    TILE_DPBF16(2, 4, 5);
                    TILE_LOAD(6, pairs + 96, width * 4);
                    TILE_DPBF16(3, 4, 6);
                }
            }
            TILE_STORE(0, to, to_ld * 4);
            TILE_STORE(1, to + 16, to_ld * 4);
            if (four) {
                TILE_STORE(2, to + 32, to_ld * 4);
                TILE_STORE(3, to + 48, to_ld * 4);
            }
            if (rows == 16) continue;
            for (int r = 0; r < rows; ++r) std::memcpy(out + int64_t(r) * ld + dim, whole + r * 64, (four ? 64 : 32) * sizeof(float));
        }
    }
};

using Products = AmxProducts;

#else

using Products = Bf16Products;

#endif

#else

// Products in float32. Keys and values are widened once per tile.
struct FloatProducts {
    using Packed = float;
    struct Session {
        Session() {}
    };
    static constexpr int kStrip = 4;
    static constexpr int kDirectRows = 0;  // always packed
    static int padded(int head_dim) { return head_dim; }

    static void pack_query(const bf16* query, int head_dim, Packed* packed) {
        for (int i = 0; i < head_dim; ++i) packed[i] = bf16_to_float(query[i]);
    }

    // Keys as [block of Lanes::count tokens][dimension][token of the block].
    template <KvKind kind>
    static void pack_keys(const char* const* rows, int64_t offset, int head_dim, int begin, int end, Packed* packed, Prefetcher& next) {
        const int lines = head_dim / 64 * (kind == KvKind::kBf16 ? 4 : 2) * Lanes::count / 16 + 1;
        for (int token = begin; token < end; token += Lanes::count) {
            Packed* block = packed + int64_t(token) * head_dim;
            for (int dim = 0; dim < head_dim; dim += Lanes::count) {
                Packed square[Lanes::count][Lanes::count];
                for (int i = 0; i < Lanes::count; ++i) load_dims<kind>(rows[token - begin + i] + offset, dim, square[i]);
                for (int d = 0; d < Lanes::count; ++d) {
                    for (int i = 0; i < Lanes::count; ++i) block[(dim + d) * Lanes::count + i] = square[i][d];
                }
            }
            next.step(lines);
        }
    }

    // Values as [token][head_dim].
    template <KvKind kind>
    static void pack_values(const char* const* rows, int64_t offset, int head_dim, int begin, int end, Packed* packed, Prefetcher& next) {
        const int lines = head_dim / 64 * (kind == KvKind::kBf16 ? 4 : 2) / 16 + 1;
        for (int token = begin; token < end; ++token) {
            for (int dim = 0; dim < head_dim; dim += Lanes::count) {
                load_dims<kind>(rows[token - begin] + offset, dim, packed + int64_t(token) * head_dim + dim);
            }
            next.step(lines);
        }
    }

    static void scores(const Packed* queries, int rows, const Packed* keys, int head_dim, int begin, int end, float* scores) {
        with_rows<1, kStrip>(rows, [&](auto count) { score_rows<count.value>(queries, keys, head_dim, begin, end, scores); });
    }

    static Lanes put_probabilities(const Lanes* p, Packed* packed, Lanes sum) {
        for (int i = 0; i < kTokenStep / Lanes::count; ++i) {
            p[i].store(packed + i * Lanes::count);
            sum = sum + p[i];
        }
        return sum;
    }

    static void weigh(const Packed* probabilities, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        with_rows<1, kStrip>(rows, [&](auto count) { weigh_rows<count.value>(probabilities, values, head_dim, begin, end, out, ld); });
    }

    static void finish(const float* out, float factor, int head_dim, bf16* target) {
        for (int dim = 0; dim < head_dim; ++dim) target[dim] = float_to_bf16(out[dim] * factor + 0.0f);
    }

private:
    template <KvKind kind>
    static void load_dims(const char* head, int dim, float* out) {
        if constexpr (kind == KvKind::kBf16) {
            bf16 raw[Lanes::count];
            std::memcpy(raw, head + dim * 2, sizeof raw);
            for (int i = 0; i < Lanes::count; ++i) out[i] = bf16_to_float(raw[i]);
        } else {
            int8_t raw[Lanes::count];
            std::memcpy(raw, head + dim, sizeof raw);
            for (int i = 0; i < Lanes::count; ++i) out[i] = float(raw[i]);
        }
    }

    static constexpr int kBlocks = 2;  // vectors of a row computed together

    template <int rows>
    static void score_rows(const Packed* queries, const Packed* keys, int head_dim, int begin, int end, float* scores) {
        for (int token = begin; token < end; token += kBlocks * Lanes::count) {
            const Packed* block = keys + int64_t(token) * head_dim;
            Lanes sum[rows][kBlocks];
            for (auto& row : sum) {
                for (auto& lanes : row) lanes = Lanes::set(0.0f);
            }
            for (int dim = 0; dim < head_dim; ++dim) {
                Lanes key[kBlocks];
                for (int b = 0; b < kBlocks; ++b) key[b] = Lanes::load(block + (b * head_dim + dim) * Lanes::count);
                for (int r = 0; r < rows; ++r) {
                    const Lanes query = Lanes::set(queries[r * head_dim + dim]);
                    for (int b = 0; b < kBlocks; ++b) sum[r][b] = fma(query, key[b], sum[r][b]);
                }
            }
            for (int r = 0; r < rows; ++r) {
                for (int b = 0; b < kBlocks; ++b) sum[r][b].store(scores + r * kTile + token + b * Lanes::count);
            }
        }
    }

    template <int rows>
    static void weigh_rows(const Packed* p, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        for (int dim = 0; dim < head_dim; dim += kBlocks * Lanes::count) {
            Lanes sum[rows][kBlocks];
            for (auto& row : sum) {
                for (auto& lanes : row) lanes = Lanes::set(0.0f);
            }
            for (int token = begin; token < end; ++token) {
                Lanes value[kBlocks];
                for (int b = 0; b < kBlocks; ++b) value[b] = Lanes::load(values + int64_t(token) * head_dim + dim + b * Lanes::count);
                for (int r = 0; r < rows; ++r) {
                    const Lanes weight = Lanes::set(p[r * kTile + token]);
                    for (int b = 0; b < kBlocks; ++b) sum[r][b] = fma(weight, value[b], sum[r][b]);
                }
            }
            for (int r = 0; r < rows; ++r) {
                for (int b = 0; b < kBlocks; ++b) sum[r][b].store(out + int64_t(r) * ld + dim + b * Lanes::count);
            }
        }
    }
};

using Products = FloatProducts;

#endif

}  // namespace octavo
