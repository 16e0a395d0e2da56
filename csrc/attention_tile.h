// The pieces of one tile's attention that are the same for every ISA: probabilities from scores, and folding tiles together.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.h"
#include "attention_products.h"
#include "exp.h"

namespace octavo {

constexpr int64_t kZeroBytes = 64 * 1024;
constexpr float kNothing = -std::numeric_limits<float>::infinity();  // the largest exponent of no scores

// A row of results: [padded head_dim] weighted values, then the sum of the probabilities in Lanes::count pieces.
inline int result_width(int head_dim) { return Products::padded(head_dim) + Lanes::count; }

// Floats of one tile's partial results: of each head and row the result, then of each the largest exponent.
inline int64_t partial_floats(const AttentionShape& shape, const AttentionUnit& unit) {
    const int rows = unit.queries * (shape.heads / shape.kv_heads);
    const int64_t floats = int64_t(unit.heads) * rows * (result_width(shape.head_dim) + 1);
    return (floats + 15) / 16 * 16;
}

// Tokens of the tile that a query sees: [low, high), both within [0, kTile].
struct Seen {
    int low, high;
};

inline Seen seen_tokens(int position, int tile, int window) {
    const int high = std::min(position + 1 - tile * kTile, kTile);
    const int low = window > 0 ? std::max(position + 1 - window - tile * kTile, 0) : 0;
    return {std::min(low, kTile), std::max(high, 0)};
}

// What turns a product into an exponent of two.
struct Scoring {
    float to_log2;     // scale * log2(e); with a soft cap: cap * log2(e)
    float into_cap;    // scale / cap; 0: no soft cap
};

inline Scoring scoring(float scale, float softcap) {
    if (softcap > 0) return {softcap * kLog2E, scale / softcap};
    return {scale * kLog2E, 0.0f};
}

// The largest of the scores in [begin, end) that are seen, after scales and soft cap, which are written back.
template <bool scaled, bool masked>
inline Lanes largest_scores(float* scores, Seen seen, int begin, int end, const Scoring& scoring, const float* key_scales) {
    const Lanes nothing = Lanes::set(kNothing);
    Lanes top[2] = {nothing, nothing};
    for (int token = begin; token < end; token += 2 * Lanes::count) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const int at = token + i * Lanes::count;
            Lanes s = Lanes::load(scores + at);
            if constexpr (scaled) s = s * Lanes::load(key_scales + at);
            if (scoring.into_cap != 0.0f) s = tanh(s * Lanes::set(scoring.into_cap));
            if (scaled || scoring.into_cap != 0.0f) s.store(scores + at);
            if constexpr (masked) s = keep_range(s, seen.low - at, seen.high - at, nothing);
            top[i] = max(top[i], s);
        }
    }
    return max(top[0], top[1]);
}

// Probabilities from scores, relative to the largest score; returns their sum, in pieces.
template <bool scaled, bool masked>
inline Lanes exponentials(const float* scores, Seen seen, int begin, int end, float to_log2, float largest_score,
                          const float* value_scales, Products::Packed* packed) {
    constexpr int kVectors = kTokenStep / Lanes::count;
    const Lanes factor = Lanes::set(to_log2), shift = Lanes::set(-largest_score), zero = Lanes::set(0.0f);
    Lanes total = zero;
    for (int token = begin; token < end; token += kTokenStep) {
        Lanes p[kVectors];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
            const int at = token + i * Lanes::count;
            Lanes exponent = fma(Lanes::load(scores + at), factor, shift);
            // What is not seen may be greater than the largest score: it must not reach the exponential.
            if constexpr (masked) exponent = keep_range(exponent, seen.low - at, seen.high - at, zero);
            p[i] = exp2_close(exponent);
            if constexpr (masked) p[i] = keep_range(p[i], seen.low - at, seen.high - at, zero);
        }
        if constexpr (scaled) {
#pragma GCC unroll 4
            for (int i = 0; i < kVectors; ++i) {
                total = total + p[i];
                p[i] = p[i] * Lanes::load(value_scales + token + i * Lanes::count);
            }
            Products::put_probabilities(p, packed + token, zero);
        } else {
            total = Products::put_probabilities(p, packed + token, total);
        }
    }
    return total;
}

// The largest exponent of a row's tokens [begin, end) of a tile; kNothing where it sees none of them. key_scales: of each
// token, or null.
template <bool scaled>
inline float largest_exponent(float* scores, Seen seen, int begin, int end, const Scoring& scoring, const float* key_scales) {
    if (seen.high <= seen.low) return kNothing;
    const bool whole = seen.low <= begin && seen.high >= end;
    const Lanes top = whole ? largest_scores<scaled, false>(scores, seen, begin, end, scoring, key_scales)
                            : largest_scores<scaled, true>(scores, seen, begin, end, scoring, key_scales);
    return largest(top) * scoring.to_log2;
}

// A row's probabilities, relative to its largest exponent; `sum` receives their sum, in pieces. value_scales: per token, or null.
template <bool scaled>
inline void probabilities(const float* scores, Seen seen, int begin, int end, const Scoring& scoring, float top,
                          const float* value_scales, Products::Packed* packed, float* sum) {
    if (seen.high <= seen.low) {
        const Lanes none[kTokenStep / Lanes::count] = {}, zero = Lanes::set(0.0f);
        for (int token = begin; token < end; token += kTokenStep) Products::put_probabilities(none, packed + token, zero);
        zero.store(sum);
    } else if (seen.low <= begin && seen.high >= end) {
        exponentials<scaled, false>(scores, seen, begin, end, scoring.to_log2, top, value_scales, packed).store(sum);
    } else {
        exponentials<scaled, true>(scores, seen, begin, end, scoring.to_log2, top, value_scales, packed).store(sum);
    }
}

// Folds a tile's results of some rows into those of the tiles before it. `tops` are the largest exponents, read in whole Lanes.
inline void fold(float* results, float* tops, const float* tile_results, const float* tile_tops, int rows, int width) {
    alignas(64) float keep[Lanes::count], take[Lanes::count], greater[Lanes::count];
    for (int row = 0; row < rows; ++row, results += width, tile_results += width) {
        const int lane = row % Lanes::count;
        if (lane == 0) {
            const Lanes before = Lanes::load(tops + row), tile = Lanes::load(tile_tops + row), top = max(before, tile);
            const Lanes least = Lanes::set(-1000.0f);  // its power is 0, or next to it; and in place of the NaN of two infinities
            exp2_fine(max(before - top, least)).store(keep);
            exp2_fine(max(tile - top, least)).store(take);
            top.store(greater);
        }
        if (tile_tops[row] == kNothing) continue;
        if (tops[row] == kNothing) {
            std::memcpy(results, tile_results, size_t(width) * sizeof(float));
        } else {
            const Lanes a = Lanes::set(keep[lane]), b = Lanes::set(take[lane]);
            for (int i = 0; i < width; i += Lanes::count) {
                fma(Lanes::load(tile_results + i), b, Lanes::load(results + i) * a).store(results + i);
            }
        }
        tops[row] = greater[lane];
    }
}

}  // namespace octavo
