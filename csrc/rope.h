// From the fused projection to attention's inputs: split queries, keys and values, normalise heads, rotate queries and keys by
// their position, write keys and values into the KV cache.
#pragma once

#include <cstdint>

#include "bf16.h"
#include "kv_view.h"
#include "row.h"
#include "scratch.h"

namespace octavo {

struct RopeArgs {
    const float* qkv;      // [tokens][ldqkv]: query heads, then key heads, then value heads
    int64_t ldqkv;
    const Row* rows;
    int row_count;
    int tokens;            // of all rows; row i's first is rows[i].first, ascending and without gaps
    int heads;
    int kv_heads;
    int head_dim;          // a multiple of 16
    const float* turns;    // [positions][rotary_dim]: cosines of rotary_dim / 2 frequencies, then their sines; see rope_turns
    int rotary_dim;        // the first dimensions of a head, of which the two halves are pairs; the rest is left as it is
    const float* q_norm;   // [head_dim] weights of an RMSNorm of every query head; null: none
    const float* k_norm;   // likewise of key heads
    float eps;
    KvView kv;             // of this layer
    bf16* q;               // [tokens][ldq]: heads x head_dim
    int64_t ldq;
};

// Fills `turns` for positions [0, positions): angle = position * frequency, in double precision.
void rope_turns(const double* frequencies, int rotary_dim, int positions, float* turns);

int rope_items(const RopeArgs& args);
void rope_item(const RopeArgs& args, int item, Scratch& scratch);

}  // namespace octavo
