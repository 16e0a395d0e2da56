#pragma once

#include <cstring>

#include "attention_common.h"
#include "bf16.h"
#include "kv_view.h"
#include "lanes.h"

namespace octavo {

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
    static void pack_keys(const HeadRows& from, int head_dim, Packed* packed, Prefetcher& next) {
        const int lines = head_dim / 64 * (kind == KvKind::kBf16 ? 4 : 2) * Lanes::count / 16 + 1;
        for (int token = from.begin; token < from.end; token += Lanes::count) {
            Packed* block = packed + int64_t(token) * head_dim;
            for (int dim = 0; dim < head_dim; dim += Lanes::count) {
                Packed square[Lanes::count][Lanes::count];
                const char* const* rows = from.rows + (token - from.begin);
                for (int i = 0; i < Lanes::count; ++i) load_dims<kind>(rows[i] + from.offset, dim, square[i]);
                for (int d = 0; d < Lanes::count; ++d) {
                    for (int i = 0; i < Lanes::count; ++i) block[(dim + d) * Lanes::count + i] = square[i][d];
                }
            }
            next.step(lines);
        }
    }

    // Values as [token][head_dim].
    template <KvKind kind>
    static void pack_values(const HeadRows& from, int head_dim, Packed* packed, Prefetcher& next) {
        const int lines = head_dim / 64 * (kind == KvKind::kBf16 ? 4 : 2) / 16 + 1;
        for (int token = from.begin; token < from.end; ++token) {
            const char* head = from.rows[token - from.begin] + from.offset;
            for (int dim = 0; dim < head_dim; dim += Lanes::count) {
                load_dims<kind>(head, dim, packed + int64_t(token) * head_dim + dim);
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

    static void weigh(const Packed* p, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        with_rows<1, kStrip>(rows, [&](auto count) { weigh_rows<count.value>(p, values, head_dim, begin, end, out, ld); });
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
