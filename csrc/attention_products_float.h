#pragma once

#include <algorithm>
#include <cstring>

#include "attention_common.h"
#include "bf16.h"
#include "kv_view.h"
#include "lanes.h"

namespace octavo {

// Products in float32. Keys and values are widened once per tile.
struct FloatProducts {
    using Packed = float;
    struct Setup {
        Setup() {}
    };
    static constexpr int kStrip = 6, kBlocks = 2;  // rows, and vectors of a row, computed together: what 16 registers hold
    static constexpr int kDirectRows = 0;  // always packed
    static int padded(int head_dim) { return head_dim; }

    static void pack_query(const bf16* query, int head_dim, Packed* packed) {
        for (int i = 0; i < head_dim; ++i) packed[i] = bf16_to_float(query[i]);
    }

    // Keys as [block of Lanes::count tokens][dimension][token of the block].
    template <KvKind kind>
    static void pack_keys(const HeadRows& from, int head_dim, Packed* packed, Prefetcher& next) {
        for (int token = from.begin; token < from.end; token += kCount) {
            const char* const* rows = from.rows + (token - from.begin);
            Packed* block = packed + int64_t(token) * head_dim;
            for (int dim = 0; dim < head_dim; dim += 2 * kCount) {
                Words even[kCount], odd[kCount];
                if constexpr (kind == KvKind::kBf16) {  // two to a word: half the way for each
                    Words pairs[kCount];
                    for (int i = 0; i < kCount; ++i) std::memcpy(&pairs[i], rows[i] + from.offset + dim * 2, sizeof(Words));
                    transpose(pairs);
                    for (int i = 0; i < kCount; ++i) widen(pairs[i], even[i], odd[i]);
                } else {
                    for (int i = 0; i < kCount; ++i) load_dims<kind>(rows[i] + from.offset, dim, even[i], odd[i]);
                    transpose(even);
                    transpose(odd);
                }
                for (int i = 0; i < kCount; ++i) {
                    store(even[i], block + (dim + 2 * i) * kCount);
                    store(odd[i], block + (dim + 2 * i + 1) * kCount);
                }
            }
            next.step(kCount * lines_of_token(kind, head_dim));
        }
    }

    // Values as [token][head_dim], of each 2 Lanes::count dimensions the even ones before the odd ones.
    template <KvKind kind>
    static void pack_values(const HeadRows& from, int head_dim, Packed* packed, Prefetcher& next) {
        for (int token = from.begin; token < from.end; ++token) {
            const char* head = from.rows[token - from.begin] + from.offset;
            Packed* row = packed + int64_t(token) * head_dim;
            for (int dim = 0; dim < head_dim; dim += 2 * kCount) {
                Words even, odd;
                load_dims<kind>(head, dim, even, odd);
                store(even, row + dim);
                store(odd, row + dim + kCount);
            }
            next.step(lines_of_token(kind, head_dim));
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

    static void weigh(const Packed* p, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        with_rows<1, kStrip>(rows, [&](auto count) { weigh_rows<count.value>(p, values, head_dim, begin, end, out, ld); });
    }

    // Writes factor * out in the natural order of dimensions. + 0 turns -0 into 0: which tokens were left out must not show.
    static void finish(const float* out, float factor, int head_dim, bf16* target) {
        for (int dim = 0; dim < head_dim; dim += 2 * kCount) {
            for (int i = 0; i < kCount; ++i) {
                target[dim + 2 * i] = float_to_bf16(out[dim + i] * factor + 0.0f);
                target[dim + 2 * i + 1] = float_to_bf16(out[dim + kCount + i] * factor + 0.0f);
            }
        }
    }

private:
    static constexpr int kCount = Lanes::count;
    typedef uint32_t Words __attribute__((vector_size(kCount * 4)));  // the bits of as many float32

    static void store(const Words& words, float* to) { std::memcpy(to, &words, sizeof words); }

    // Cache lines of the next tile that go with packing one token's keys, or its values.
    static int lines_of_token(KvKind kind, int head_dim) { return std::max(1, head_dim / (kind == KvKind::kBf16 ? 32 : 64)); }

    static void widen(const Words& pairs, Words& even, Words& odd) {
        even = pairs << 16;
        odd = pairs & 0xffff0000u;
    }

    // Dimensions [dim, dim + 2 kCount) of a token as float32, the even ones and the odd ones.
    template <KvKind kind>
    static void load_dims(const char* head, int dim, Words& even, Words& odd) {
        if constexpr (kind == KvKind::kBf16) {
            Words pairs;
            std::memcpy(&pairs, head + dim * 2, sizeof pairs);
            widen(pairs, even, odd);
        } else {
            float split[2 * kCount];
            for (int i = 0; i < kCount; ++i) {
                split[i] = float(static_cast<signed char>(head[dim + 2 * i]));
                split[kCount + i] = float(static_cast<signed char>(head[dim + 2 * i + 1]));
            }
            std::memcpy(&even, split, sizeof even);
            std::memcpy(&odd, split + kCount, sizeof odd);
        }
    }

    // kCount rows of as many words become columns.
    static void transpose(Words* r) {
        Words a[kCount];
#if defined(__AVX2__)
        Words b[kCount];
        for (int i = 0; i < 8; i += 2) {
            a[i] = __builtin_shuffle(r[i], r[i + 1], Words{0, 8, 1, 9, 4, 12, 5, 13});
            a[i + 1] = __builtin_shuffle(r[i], r[i + 1], Words{2, 10, 3, 11, 6, 14, 7, 15});
        }
        for (int i = 0; i < 8; i += 4) {
            b[i] = __builtin_shuffle(a[i], a[i + 2], Words{0, 1, 8, 9, 4, 5, 12, 13});
            b[i + 1] = __builtin_shuffle(a[i], a[i + 2], Words{2, 3, 10, 11, 6, 7, 14, 15});
            b[i + 2] = __builtin_shuffle(a[i + 1], a[i + 3], Words{0, 1, 8, 9, 4, 5, 12, 13});
            b[i + 3] = __builtin_shuffle(a[i + 1], a[i + 3], Words{2, 3, 10, 11, 6, 7, 14, 15});
        }
        for (int i = 0; i < 4; ++i) {
            r[i] = __builtin_shuffle(b[i], b[i + 4], Words{0, 1, 2, 3, 8, 9, 10, 11});
            r[i + 4] = __builtin_shuffle(b[i], b[i + 4], Words{4, 5, 6, 7, 12, 13, 14, 15});
        }
#else
        for (int i = 0; i < 4; i += 2) {
            a[i] = __builtin_shuffle(r[i], r[i + 1], Words{0, 4, 1, 5});
            a[i + 1] = __builtin_shuffle(r[i], r[i + 1], Words{2, 6, 3, 7});
        }
        r[0] = __builtin_shuffle(a[0], a[2], Words{0, 1, 4, 5});
        r[1] = __builtin_shuffle(a[0], a[2], Words{2, 3, 6, 7});
        r[2] = __builtin_shuffle(a[1], a[3], Words{0, 1, 4, 5});
        r[3] = __builtin_shuffle(a[1], a[3], Words{2, 3, 6, 7});
#endif
    }

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
                const Packed* from = values + int64_t(token) * head_dim + dim;
                Lanes value[kBlocks];
                for (int b = 0; b < kBlocks; ++b) value[b] = Lanes::load(from + b * Lanes::count);
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

}  // namespace octavo
