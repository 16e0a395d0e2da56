#pragma once

#include <cstring>

#include "attention_common.h"
#include "bf16.h"
#include "bf16_pairs.h"
#include "kv_view.h"
#include "lanes.h"

namespace octavo {

// Products in float32 on AVX-512 CPUs without VDPBF16PS: what is read is widened once, and every sum is a chain of fused multiply-adds.
// Few rows read keys and values where they lie, as in Bf16Products.
struct WidenedProducts {
    using Packed = float;
    struct Setup {
        Setup() {}
    };
    static constexpr int kStrip = 6;  // rows computed together
    static int padded(int head_dim) { return (head_dim + 31) / 32 * 32; }  // dimensions, with zeros behind the head's own

    // [padded]
    static void pack_query(const bf16* query, int head_dim, Packed* packed) {
        for (int i = 0; i < head_dim; ++i) packed[i] = bf16_to_float(query[i]);
        for (int i = head_dim; i < padded(head_dim); ++i) packed[i] = 0.0f;
    }

    // Keys as [block of 16 tokens][dimension][16 tokens].
    template <KvKind kind>
    static void pack_keys(const HeadRows& from, int head_dim, Packed* packed, Prefetcher& next) {
        const int width = padded(head_dim);
        const int lines = head_dim / 4 * (kind == KvKind::kBf16 ? 2 : 1);
        const char* const* rows = from.rows;
        for (int token = from.begin; token < from.end; token += 16, rows += 16) {
            Packed* out = packed + int64_t(token) * width;
            int dim = 0;
            for (; dim + 32 <= head_dim; dim += 32) pack_key_block<kind, 32>(rows, from.offset, dim, out + dim * 16);
            if (dim < head_dim) pack_key_block<kind, 16>(rows, from.offset, dim, out + dim * 16);
            next.step(lines);
        }
    }

    // Values as [token][padded], of each 32 dimensions the even ones before the odd ones: see finish.
    template <KvKind kind>
    static void pack_values(const HeadRows& from, int head_dim, Packed* packed, Prefetcher& next) {
        const int width = padded(head_dim);
        const int lines = head_dim / 64 * (kind == KvKind::kBf16 ? 2 : 1) + 1;
        const char* const* rows = from.rows;
        for (int token = from.begin; token < from.end; ++token, ++rows) {
            Packed* out = packed + int64_t(token) * width;
            int dim = 0;
            for (; dim + 32 <= head_dim; dim += 32) pack_value_block<kind, 32>(*rows + from.offset, dim, out + dim);
            if (dim < head_dim) pack_value_block<kind, 16>(*rows + from.offset, dim, out + dim);
            next.step(lines);
        }
    }

    // scores[row][token] = query . key for tokens [begin, end).
    static void scores(const Packed* queries, int rows, const Packed* keys, int head_dim, int begin, int end, float* scores) {
        const int width = padded(head_dim);
        with_rows<1, kStrip>(rows, [&](auto count) { score_rows<count.value>(queries, keys, width, begin, end, scores); });
    }

    // Takes the probabilities of one row for a step of tokens; returns `sum` plus theirs, in whatever lanes.
    static Lanes put_probabilities(const Lanes* p, Packed* packed, Lanes sum) {
        p[0].store(packed);
        p[1].store(packed + 16);
        return sum + (p[0] + p[1]);
    }

    // out[row][dim] = sum over tokens [begin, end) of probability times value.
    static void weigh(const Packed* p, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        const int width = padded(head_dim);
        with_rows<1, kStrip>(rows, [&](auto count) { weigh_rows<count.value>(p, values, width, begin, end, out, ld); });
    }

    // How far ahead a few rows' reading of keys and values prefetches: see Bf16Products.
    static constexpr int kDirectRows = 8;

    // queries: [heads][count][padded]; scores: [heads][count][kTile].
    template <KvKind kind>
    static void scores_direct(const Packed* queries, int count, const UnitRows& keys, int head_dim, float* scores) {
        with_rows<1, kDirectRows>(count, [&](auto constant) {
            constexpr int kRows = decltype(constant)::value;
            const int width = padded(head_dim);
            const char* const* rows = keys.rows;
            const char* const* far = rows + (keys.end - keys.begin);
            for (int token = keys.begin; token < keys.end; token += 16, rows += 16, far += 16) {
                if (kind == KvKind::kInt8) {
                    for (int i = 0; i < 16; ++i) prefetch_far(far[i] + keys.scale_offset);
                }
                for (int h = 0; h < keys.heads; ++h) {
                    const Packed* query = queries + h * kRows * width;
                    const int64_t at = keys.offset + h * keys.head_stride;
                    __m512 sum[kRows];
                    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
                    int dim = 0;
                    for (; dim + 32 <= head_dim; dim += 32) {
                        score_key_block<kind, 32, kRows>(query + dim, width, rows, far, at, dim, sum);
                    }
                    if (dim < head_dim) score_key_block<kind, 16, kRows>(query + dim, width, rows, far, at, dim, sum);
                    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(scores + (h * kRows + r) * kTile + token, sum[r]);
                }
            }
        });
    }

    // p: [heads][count][kTile]; out: [heads][count][ld].
    template <KvKind kind>
    static void weigh_direct(const Packed* p, int count, const UnitRows& values, int head_dim, float* out, int ld) {
        with_rows<1, kDirectRows>(count, [&](auto constant) {
            constexpr int kRows = decltype(constant)::value;
            constexpr int kBlocks = kRows <= 6 ? 2 : 1;
            const char* const* rows = values.rows;
            const char* const* far = rows + (values.end - values.begin);
            for (int token = values.begin; token < values.end; token += kTokenStep, rows += kTokenStep, far += kTokenStep) {
                const bool first = token == values.begin;
                if (kind == KvKind::kInt8) {
                    for (int i = 0; i < kTokenStep; ++i) prefetch_far(far[i] + values.scale_offset);
                }
                for (int h = 0; h < values.heads; ++h) {
                    const Packed* weights = p + h * kRows * kTile + token;
                    const int64_t at = values.offset + h * values.head_stride;
                    float* to = out + int64_t(h) * kRows * ld;
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
        for (int dim = 0; dim < head_dim; dim += 32) {
            const __m512i even = rounded(_mm512_fmadd_ps(_mm512_loadu_ps(out + dim), scale, zero));
            const __m512i odd = rounded(_mm512_fmadd_ps(_mm512_loadu_ps(out + dim + 16), scale, zero));
            const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd);
            _mm512_mask_storeu_epi16(target + dim, head_dim - dim >= 32 ? 0xffffffffu : 0xffffu, both);
        }
    }

private:
    // `count` (32 or 16) dimensions of a token as pairs of bfloat16 or of 16-bit integers, zeros behind them.
    template <KvKind kind, int count>
    static __m512i load_pairs(const char* from) {
        if constexpr (kind == KvKind::kBf16) {
            if constexpr (count == 32) return _mm512_loadu_si512(from);
            return _mm512_maskz_loadu_epi16(0xffffu, from);
        } else if constexpr (count == 32) {
            return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        } else {
            return _mm512_zextsi256_si512(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
        }
    }

    template <KvKind kind>
    static __m512 even_of(__m512i pairs) {
        const __m512i bits = _mm512_slli_epi32(pairs, 16);
        return kind == KvKind::kBf16 ? _mm512_castsi512_ps(bits) : _mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 16));
    }

    template <KvKind kind>
    static __m512 odd_of(__m512i pairs) {
        return kind == KvKind::kBf16 ? second_of_pairs(pairs) : _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16));
    }

    template <KvKind kind, int count>
    static void pack_key_block(const char* const* rows, int64_t offset, int dim, Packed* out) {
        offset += dim * (kind == KvKind::kBf16 ? 2 : 1);
        __m512i block[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) block[i] = load_pairs<kind, count>(rows[i] + offset);
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            _mm512_store_ps(out + i * 32, even_of<kind>(block[i]));
            _mm512_store_ps(out + i * 32 + 16, odd_of<kind>(block[i]));
        }
    }

    template <KvKind kind, int count>
    static void pack_value_block(const char* row, int dim, Packed* out) {
        const __m512i pairs = load_pairs<kind, count>(row + dim * (kind == KvKind::kBf16 ? 2 : 1));
        _mm512_store_ps(out, even_of<kind>(pairs));
        _mm512_store_ps(out + 16, odd_of<kind>(pairs));
    }

    // 16 rows of 16 32-bit values become 16 columns.
    OCTAVO_INLINE static void transpose(__m512i* r) {
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

    template <KvKind kind, int count, int rows>
    OCTAVO_INLINE static void score_key_block(const Packed* queries, int width, const char* const* keys, const char* const* far,
                                              int64_t offset, int dim, __m512* sum) {
        offset += dim * (kind == KvKind::kBf16 ? 2 : 1);
        __m512i block[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            block[i] = load_pairs<kind, count>(keys[i] + offset);
            prefetch_near(keys[i + kNearRows] + offset);
            prefetch_far(far[i] + offset);
        }
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            const __m512 even = even_of<kind>(block[i]), odd = odd_of<kind>(block[i]);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                sum[r] = _mm512_fmadd_ps(even, _mm512_set1_ps(queries[r * width + 2 * i]), sum[r]);
                sum[r] = _mm512_fmadd_ps(odd, _mm512_set1_ps(queries[r * width + 2 * i + 1]), sum[r]);
            }
        }
    }

    // Adds kTokenStep tokens to `out`; starts it, where they are the first.
    template <KvKind kind, int count, int rows, int blocks>
    OCTAVO_INLINE static void weigh_value_block(const Packed* p, const char* const* values, const char* const* far,
                                                int64_t offset, int dim, bool first, float* out, int ld) {
        constexpr int kBytes = kind == KvKind::kBf16 ? 2 : 1;
        __m512 sum[rows][blocks * 2];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int b = 0; b < blocks * 2; ++b) {
                sum[r][b] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + int64_t(r) * ld + b * 16);
            }
        }
        for (int token = 0; token < kTokenStep; ++token) {
            __m512 value[blocks * 2];
#pragma GCC unroll 2
            for (int b = 0; b < blocks; ++b) {
                const int64_t at = offset + (dim + b * 32) * kBytes;
                const __m512i pairs = load_pairs<kind, count>(values[token] + at);
                value[b * 2] = even_of<kind>(pairs);
                value[b * 2 + 1] = odd_of<kind>(pairs);
                prefetch_near(values[token + kNearRows] + at);
                prefetch_far(far[token] + at);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const __m512 weight = _mm512_set1_ps(p[r * kTile + token]);
#pragma GCC unroll 4
                for (int b = 0; b < blocks * 2; ++b) sum[r][b] = _mm512_fmadd_ps(value[b], weight, sum[r][b]);
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
        for (; token + 64 <= end; token += 64) {
            score_block<rows, 4>(queries, keys + int64_t(token) * width, width, scores + token);
        }
        if (token < end) score_block<rows, 2>(queries, keys + int64_t(token) * width, width, scores + token);
    }

    template <int rows, int blocks>
    static void score_block(const Packed* queries, const Packed* keys, int width, float* scores) {
        __m512 sum[rows][blocks];
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_setzero_ps();
        }
        for (int dim = 0; dim < width; ++dim) {
            __m512 key[blocks];
            for (int b = 0; b < blocks; ++b) key[b] = _mm512_load_ps(keys + (b * width + dim) * 16);
            for (int r = 0; r < rows; ++r) {
                const __m512 query = _mm512_set1_ps(queries[r * width + dim]);
                for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_fmadd_ps(key[b], query, sum[r][b]);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) _mm512_storeu_ps(scores + r * kTile + b * 16, sum[r][b]);
        }
    }

    template <int rows>
    static void weigh_rows(const Packed* p, const Packed* values, int width, int begin, int end, float* out, int ld) {
        int dim = 0;
        for (; dim + 64 <= width; dim += 64) weigh_block<rows, 4>(p, values + dim, width, begin, end, out + dim, ld);
        if (dim < width) weigh_block<rows, 2>(p, values + dim, width, begin, end, out + dim, ld);
    }

    template <int rows, int blocks>
    static void weigh_block(const Packed* p, const Packed* values, int width, int begin, int end, float* out, int ld) {
        __m512 sum[rows][blocks];
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_setzero_ps();
        }
        for (int token = begin; token < end; ++token) {
            __m512 value[blocks];
            for (int b = 0; b < blocks; ++b) value[b] = _mm512_load_ps(values + int64_t(token) * width + b * 16);
            for (int r = 0; r < rows; ++r) {
                const __m512 weight = _mm512_set1_ps(p[r * kTile + token]);
                for (int b = 0; b < blocks; ++b) sum[r][b] = _mm512_fmadd_ps(value[b], weight, sum[r][b]);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int b = 0; b < blocks; ++b) _mm512_storeu_ps(out + int64_t(r) * ld + b * 16, sum[r][b]);
        }
    }
};

}  // namespace octavo
