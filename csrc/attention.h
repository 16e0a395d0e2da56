// Attention of a step's tokens over the KV cache: out = softmax(mask(softcap(q K^T scale))) V, for any layout.
//
// Three nested cuts of the work, none of which changes a bit of the result:
//   tile   kTile tokens at absolute positions. A query's scores, probabilities and sum over one tile are computed in one go, then
//          folded into what the tiles before it gave, in order. Which tiles there are depends on the query's position alone.
//   unit   some queries of one row x some kv heads x a range of tiles. The queries of a kv head's whole group are rows of one
//          tile, so keys and values are read once for all of them.
//   item   some units: what a thread claims.
// Where a query's tiles are spread over several units, each leaves its tiles' partial results, and a second phase folds them in
// order.
#pragma once

#include <cstdint>
#include <vector>

#include "bf16.h"
#include "kv_view.h"
#include "row.h"
#include "scratch.h"

namespace octavo {

struct AttentionShape {
    int heads;  // of queries: a multiple of kv_heads
    int kv_heads;
    int head_dim;  // a multiple of 16, 16 to 256
    KvKind kind;
};

struct AttentionUnit {
    int32_t row;             // index into the rows
    int32_t query, queries;  // tokens of the row, from its first
    int32_t head, heads;     // kv heads
    int32_t tile, tiles;     // absolute tiles
    int64_t partial;         // where its partial results begin, in floats; -1 where it has all tiles and writes the output itself
};

// How one step's attention is cut. Made once per step and window (layers of one window share it); keeps its memory between steps.
struct AttentionPlan {
    AttentionShape shape{};
    int window = 0;
    int layers = 0;                     // that are cut by this plan
    std::vector<AttentionUnit> units;
    std::vector<AttentionUnit> merges;  // of units with partial results: all tiles of some queries and heads
    std::vector<int32_t> begins;        // item i is units [begins[i], begins[i + 1])
    std::vector<float> partials;        // results between the phases: the one thing that items write in a plan
};

// Why this shape cannot be computed, as a sentence; nullptr where it can.
const char* attention_error(const AttentionShape& shape);

// window: how many tokens a query sees, its own included; 0: all. workers: threads that will share the items.
void attention_plan(AttentionPlan& plan, const AttentionShape& shape, const Row* rows, int row_count, int window, int workers);

struct AttentionArgs {
    AttentionPlan* plan;
    KvView kv;  // of this layer; holds the step's own tokens already
    const Row* rows;
    const bf16* q;  // [tokens][ldq]: heads x head_dim
    int64_t ldq;
    bf16* out;  // [tokens][ldo]: heads x head_dim
    int64_t ldo;
    float scale;    // above 0
    float softcap;  // 0: none
};

int attention_items(const AttentionArgs& args);
void attention_item(const AttentionArgs& args, int item, Scratch& scratch);

// The second phase, once all items of the first are done; often empty.
int attention_merge_items(const AttentionArgs& args);
void attention_merge_item(const AttentionArgs& args, int item, Scratch& scratch);

}  // namespace octavo
