// Step: what the operations of one step read: its rows, its tokens, where its keys and values lie, and what it samples.
#pragma once

#include <cstdint>
#include <vector>

#include "elementwise.h"
#include "kv_view.h"
#include "row.h"
#include "sample.h"

namespace octavo {

// Of one sequence's tokens, those whose logits are wanted.
enum class Wanted : int32_t { kNone = 0, kLast = 1, kAll = 2 };

// One row of a batch as the caller describes it.
struct BatchRow {
    int32_t slot, start, length;
    Wanted wanted;
    int32_t tokens;  // index of its first token id; -1: the one token that was sampled last in this slot
};

// How a slot samples from now on.
struct Opened {
    int32_t slot;
    int32_t top_k;
    float temperature;
    int32_t unused;
    double top_p;
    uint64_t seed;
    uint64_t drawn;
};

struct Batch {
    const BatchRow* rows;
    const int32_t* tokens;
    const Opened* opened;
    const Move* moves;      // carried out before anything else
    const int32_t* table;   // as in KvView
    const int32_t* run;
    char* arena;            // [layers][K|V][arena_tokens][token bytes]
    int64_t arena_tokens;
    int32_t row_count, token_count, opened_count, move_count;
    int32_t table_width;
    int32_t unused;
    float* logits;          // [wanted tokens][vocabulary]; null: only what is sampled is wanted, and kAll counts as kLast
    int32_t* sampled;       // [rows that want logits]: the token sampled from each one's last position
};

// One token whose logits are computed.
struct Selected {
    const Sampling* sampling;  // null: nothing is sampled from it
    int32_t slot;
    int32_t sampled;           // the token
};

struct Step {
    const Batch* batch = nullptr;
    std::vector<Row> rows;
    std::vector<int32_t> tokens;           // ids
    std::vector<Selected> selected;
    std::vector<int32_t> selected_tokens;  // where each is among the step's tokens
    KvView first_layer{};
    int64_t plane_bytes = 0;               // the keys, or the values, of one layer

    int token_count() const { return int(tokens.size()); }
    int selected_count() const { return int(selected.size()); }

    KvView layer_view(int layer) const {
        KvView view = first_layer;
        view.keys += 2 * int64_t(layer) * plane_bytes;
        view.values += 2 * int64_t(layer) * plane_bytes;
        return view;
    }
};

}  // namespace octavo
