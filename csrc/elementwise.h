// The small operations between the large ones: embedding rows, a gated activation on its own, gathering rows, moving keys and values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"
#include "scratch.h"
#include "weight.h"

namespace octavo {

// out[i] = row tokens[i] of the embedding, which is column tokens[i] of the packed weight, times scale.
struct EmbedArgs {
    const Weight* weight;
    const int32_t* tokens;
    int m;
    int width;
    float scale;
    float* out;
    size_t out_stride;  // bytes between rows
};
int embed_items(const EmbedArgs& args);
void embed_item(const EmbedArgs& args, int item, Scratch& scratch);

// out = activation(gate) * up, where one linear layer could not do it because its two parts have different element types.
struct GateArgs {
    const float* gate_up;   // [m][2 * width]: gate, then up
    size_t gate_up_stride;  // bytes between rows
    Epilogue activation;    // kSilu or kGelu
    int m;
    int width;
    bf16* out;              // null: not wanted
    size_t out_stride;
    QuantBlock* blocks;     // null: not wanted
    size_t blocks_stride;
};
int gate_items(const GateArgs& args);
void gate_item(const GateArgs& args, int item, Scratch& scratch);

// out[i] = rows[chosen[i]], whatever the rows hold.
struct SelectArgs {
    const char* rows;
    const int32_t* chosen;
    int m;
    size_t row_bytes;  // from row to row, in both
    char* out;
};
int select_items(const SelectArgs& args);
void select_item(const SelectArgs& args, int item, Scratch& scratch);

// Copies tokens within each layer's keys and values, in order.
struct Move {
    int64_t source, target, tokens;  // token indices
};
struct MoveArgs {
    char* memory;         // [planes][plane_bytes]: a plane is the keys, or the values, of one layer
    int64_t plane_bytes;
    int64_t token_bytes;
    int planes;
    const Move* moves;
    int count;
};
int move_items(const MoveArgs& args);
void move_item(const MoveArgs& args, int item, Scratch& scratch);

}  // namespace octavo
