#include "elementwise.h"

#include <algorithm>
#include <cstring>

#include "activation.h"

namespace octavo {

namespace {

constexpr int kValuesPerItem = 8192;

int rows_per_item(int width) { return std::max(1, kValuesPerItem / std::max(1, width)); }
int items_of(int m, int width) { return (m + rows_per_item(width) - 1) / rows_per_item(width); }

template <class T>
T* row_of(T* rows, size_t stride, int row) {
    return reinterpret_cast<T*>(const_cast<char*>(reinterpret_cast<const char*>(rows)) + size_t(row) * stride);
}

}  // namespace

int embed_items(const EmbedArgs& args) { return items_of(args.m, args.width); }

void embed_item(const EmbedArgs& args, int item, Scratch& scratch) {
    const int rows = rows_per_item(args.width);
    const int end = std::min(args.m, (item + 1) * rows);
    float* values = scratch.get<float>(size_t(args.weight->k));
    for (int row = item * rows; row < end; row++) {
        unpack_column(*args.weight, args.tokens[row], values);
        float* out = row_of(args.out, args.out_stride, row);
        for (int i = 0; i < args.width; i++) out[i] = values[i] * args.scale;
    }
}

int gate_items(const GateArgs& args) { return items_of(args.m, args.width); }

void gate_item(const GateArgs& args, int item, Scratch& scratch) {
    const int padded = (args.width + kBlock - 1) / kBlock * kBlock;
    float* values = scratch.get<float>(size_t(padded));
    std::fill(values + args.width, values + padded, 0.0f);
    const int rows = rows_per_item(args.width);
    const int end = std::min(args.m, (item + 1) * rows);
    for (int row = item * rows; row < end; row++) {
        const float* gate = row_of(args.gate_up, args.gate_up_stride, row);
        const float* up = gate + args.width;
        if (args.activation == Epilogue::kSilu)
            for (int i = 0; i < args.width; i++) values[i] = silu(gate[i]) * up[i];
        else
            for (int i = 0; i < args.width; i++) values[i] = gelu_tanh(gate[i]) * up[i];
        if (args.out) {
            bf16* out = row_of(args.out, args.out_stride, row);
            for (int i = 0; i < args.width; i++) out[i] = float_to_bf16(values[i]);
        }
        if (args.blocks) {
            QuantBlock* blocks = row_of(args.blocks, args.blocks_stride, row);
            for (int i = 0; i < padded; i += kBlock) quantize_block(values + i, blocks + i / kBlock);
        }
    }
}

int select_items(const SelectArgs& args) { return items_of(args.m, int(args.row_bytes / 4)); }

void select_item(const SelectArgs& args, int item, Scratch&) {
    const int rows = rows_per_item(int(args.row_bytes / 4));
    const int end = std::min(args.m, (item + 1) * rows);
    for (int row = item * rows; row < end; row++)
        std::memcpy(args.out + size_t(row) * args.row_bytes, args.rows + size_t(args.chosen[row]) * args.row_bytes, args.row_bytes);
}

int move_items(const MoveArgs& args) { return args.count > 0 ? args.planes : 0; }

void move_item(const MoveArgs& args, int item, Scratch&) {
    char* plane = args.memory + int64_t(item) * args.plane_bytes;
    for (int i = 0; i < args.count; i++) {
        const Move& move = args.moves[i];
        // A compaction may slide a run onto itself.
        std::memmove(plane + move.target * args.token_bytes, plane + move.source * args.token_bytes, size_t(move.tokens * args.token_bytes));
    }
}

}  // namespace octavo
