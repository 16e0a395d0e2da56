// The pieces of one tile's attention that are the same for every ISA: probabilities from scores, and folding tiles together.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.h"
#include "attention_products.h"

namespace octavo {

constexpr int64_t kZeroBytes = 64 * 1024;
constexpr float kNothing = -std::numeric_limits<float>::infinity();  // the largest score of no scores

// A row of results: [padded head_dim] weighted values, then the sum of the probabilities in Lanes::count pieces.
inline int result_width(int head_dim) { return Products::padded(head_dim) + Lanes::count; }

// Floats of one tile's partial results: of each head and row the result, then of each the largest score.
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

// Probabilities of one row over tokens [begin, end) of a tile, relative to its largest score, which is returned; kNothing where it
// sees none of them. key_scales and value_scales, per token, or null. `sum` receives the probabilities' sum, in pieces.
template <bool scaled>
inline float probabilities(float* scores, Seen seen, int begin, int end, const Scoring& scoring, const float* key_scales,
                           const float* value_scales, Products::Packed* packed, float* sum) {
    constexpr int kCount = Lanes::count;
    constexpr int kVectors = kTokenStep / kCount;
    const Lanes zero = Lanes::set(0.0f), nothing = Lanes::set(kNothing);
    if (seen.high <= seen.low) {
        const Lanes none[kVectors] = {};
        for (int token = begin; token < end; token += kTokenStep) Products::put_probabilities(none, packed + token, zero);
        zero.store(sum);
        return kNothing;
    }
    Lanes top = nothing;
    for (int token = begin; token < end; token += kCount) {
        Lanes s = Lanes::load(scores + token);
        if constexpr (scaled) s = s * Lanes::load(key_scales + token);
        if (scoring.into_cap != 0.0f) s = tanh(s * Lanes::set(scoring.into_cap));
        if (scaled || scoring.into_cap != 0.0f) s.store(scores + token);
        if (token < seen.low || token + kCount > seen.high) s = keep_range(s, seen.low - token, seen.high - token, nothing);
        top = max(top, s);
    }
    const float largest_score = largest(top) * scoring.to_log2;
    const Lanes factor = Lanes::set(scoring.to_log2), shift = Lanes::set(-largest_score);
    Lanes total = zero;
    for (int token = begin; token < end; token += kTokenStep) {
        Lanes p[kVectors];
        for (int i = 0; i < kVectors; ++i) {
            const int at = token + i * kCount;
            const Lanes exponent = fma(Lanes::load(scores + at), factor, shift);
            if (at >= seen.low && at + kCount <= seen.high) {
                p[i] = exp2_close(exponent);
            } else {  // what is not seen may be greater than the largest score: it must not reach the exponential
                const int low = seen.low - at, high = seen.high - at;
                p[i] = keep_range(exp2_close(keep_range(exponent, low, high, zero)), low, high, zero);
            }
        }
        if constexpr (scaled) {
            for (int i = 0; i < kVectors; ++i) {
                total = total + p[i];
                p[i] = p[i] * Lanes::load(value_scales + token + i * kCount);
            }
            Products::put_probabilities(p, packed + token, zero);
        } else {
            total = Products::put_probabilities(p, packed + token, total);
        }
    }
    total.store(sum);
    return largest_score;
}

// Folds a tile's results of `rows` (at most Lanes::count) rows into those of the tiles before it. `tops` are the largest scores.
inline void fold(float* results, float* tops, const float* tile_results, const float* tile_tops, int rows, int width) {
    alignas(64) float keep[Lanes::count] = {}, take[Lanes::count] = {};
    for (int r = 0; r < rows; ++r) {
        const float top = std::max(tops[r], tile_tops[r]);
        keep[r] = tops[r] == kNothing ? 0.0f : tops[r] - top;
        take[r] = tile_tops[r] == kNothing ? 0.0f : tile_tops[r] - top;
    }
    exp2_fine(Lanes::load(keep)).store(keep);
    exp2_fine(Lanes::load(take)).store(take);
    for (int r = 0; r < rows; ++r) {
        if (tile_tops[r] == kNothing) continue;
        float* into = results + int64_t(r) * width;
        const float* from = tile_results + int64_t(r) * width;
        if (tops[r] == kNothing) {
            std::memcpy(into, from, size_t(width) * sizeof(float));
        } else {
            const Lanes a = Lanes::set(keep[r]), b = Lanes::set(take[r]);
            for (int i = 0; i < width; i += Lanes::count) {
                fma(Lanes::load(from + i), b, Lanes::load(into + i) * a).store(into + i);
            }
        }
        tops[r] = std::max(tops[r], tile_tops[r]);
    }
}

}  // namespace octavo
