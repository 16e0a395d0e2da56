#include "linear.h"

#include <algorithm>
#include <cmath>

#include "activation.h"
#include "panel.h"

namespace octavo {

namespace {

constexpr size_t kRowBlockBytes = 192 << 10;  // of activations: what an item passes over again and again stays in a core's cache
constexpr double kItemBytes = 256 << 10;      // of weights: 10 us of one core's share of the memory's bandwidth
constexpr double kItemProducts = 6e6;         // 20 us of one core's arithmetic
constexpr int kPreparedPerItem = 32768;       // values: 5 us

// What panels read.
struct Rows {
    const char* data;
    size_t stride;
};

Rows rows_of(const LinearArgs& args) {
    const size_t prepared = linear_prepared_stride(*args.weight);
    return prepared ? Rows{static_cast<const char*>(args.prepared), prepared} : Rows{static_cast<const char*>(args.x), args.x_stride};
}

int prepared_per_item(const LinearArgs& args) { return std::max(1, kPreparedPerItem / std::max(1, args.weight->k)); }

// How a layer is cut: blocks of rows times groups of panels.
struct Split {
    int rows, row_blocks;
    int unit;    // panels that stay together: two where a block of 32 gated outputs becomes int8
    int units;
    int groups;  // of units, as equal as can be

    int first_panel(int group) const { return int(long(units) * group / groups) * unit; }
};

// Items are a multiple of the threads where the layer is small, so that none waits for another; no thread is left without one for the
// sake of an item's size.
Split split(const LinearArgs& args) {
    const Weight& weight = *args.weight;
    const int panels = weight_panels(weight);
    const int threads = std::max(1, args.threads);
    Split split;
    const int tile = panel_rows(weight.kind);
    const int fitting = std::max(1, int(kRowBlockBytes / std::max<size_t>(1, rows_of(args).stride)) / tile) * tile;
    const int blocks = (args.m + fitting - 1) / fitting;
    split.rows = ((args.m + blocks - 1) / blocks + tile - 1) / tile * tile;
    split.row_blocks = (args.m + split.rows - 1) / split.rows;
    split.unit = args.output == Output::kInt8 ? 2 : 1;
    split.units = (panels + split.unit - 1) / split.unit;
    const double products = double(panels) * kPanel * weight.k * std::min(args.m, split.rows);
    const double cost = std::max(double(weight_bytes(weight)) / kItemBytes, products / kItemProducts);
    const int shares = std::max(1, int(cost * split.row_blocks / threads + 0.5)) * threads;
    split.groups = std::min(split.units, (shares + split.row_blocks - 1) / split.row_blocks);
    return split;
}

// One tile's results, [rows][32], and where they belong.
struct Tile {
    float* values;
    int row, rows;  // of y
    int panel;
};

char* row_of(const LinearArgs& args, int row) { return static_cast<char*>(args.y) + size_t(row) * args.y_stride; }

void finish_values(const LinearArgs& args, const Tile& tile) {
    if (args.bias) {
        const float* bias = args.bias + size_t(tile.panel) * kPanel;
        for (int r = 0; r < tile.rows; r++)
            for (int c = 0; c < kPanel; c++) tile.values[r * kPanel + c] += bias[c];
    }
    if (args.softcap > 0.0f) {
        const float cap = args.softcap;
        for (int i = 0; i < tile.rows * kPanel; i++) tile.values[i] = cap * fast_tanh(tile.values[i] / cap);
    }
}

void store(const LinearArgs& args, const Tile& tile) {
    const int column = tile.panel * kPanel;
    const int count = std::min(kPanel, args.weight->n - column);
    for (int r = 0; r < tile.rows; r++) {
        const float* from = tile.values + r * kPanel;
        if (args.output == Output::kFloat32) {
            float* to = reinterpret_cast<float*>(row_of(args, tile.row + r)) + column;
            if (args.epilogue == Epilogue::kAdd)
                for (int c = 0; c < count; c++) to[c] += from[c];
            else
                std::memcpy(to, from, size_t(count) * sizeof(float));
        } else {
            bf16* to = reinterpret_cast<bf16*>(row_of(args, tile.row + r)) + column;
            for (int c = 0; c < count; c++) to[c] = float_to_bf16(from[c]);
        }
    }
}

// activation(gate) * up of one row: 16 outputs.
void gate(Epilogue epilogue, const float* __restrict values, float* __restrict out) {
    if (epilogue == Epilogue::kSilu)
        for (int c = 0; c < kHalfPanel; c++) out[c] = silu(values[c]) * values[kHalfPanel + c];
    else
        for (int c = 0; c < kHalfPanel; c++) out[c] = gelu_tanh(values[c]) * values[kHalfPanel + c];
}

void store_gated(const LinearArgs& args, const Tile& tile) {
    const int column = tile.panel * kHalfPanel;
    const int count = std::min(kHalfPanel, args.weight->n / 2 - column);
    for (int r = 0; r < tile.rows; r++) {
        alignas(64) float values[kHalfPanel];
        gate(args.epilogue, tile.values + r * kPanel, values);
        if (args.output == Output::kFloat32) {
            std::memcpy(reinterpret_cast<float*>(row_of(args, tile.row + r)) + column, values, size_t(count) * sizeof(float));
        } else {
            bf16* to = reinterpret_cast<bf16*>(row_of(args, tile.row + r)) + column;
            for (int c = 0; c < count; c++) to[c] = float_to_bf16(values[c]);
        }
    }
}

// Two neighbouring panels give one block of 32 outputs; `upper` is null where the second panel is beyond the weight. Padding columns
// have weights and biases of zero, so what pads the block is zero.
void store_gated_int8(const LinearArgs& args, const Tile& lower, const float* upper) {
    const int column = lower.panel * kHalfPanel;
    for (int r = 0; r < lower.rows; r++) {
        alignas(64) float values[kBlock] = {};
        gate(args.epilogue, lower.values + r * kPanel, values);
        if (upper) gate(args.epilogue, upper + r * kPanel, values + kHalfPanel);
        quantize_block(values, reinterpret_cast<QuantBlock*>(row_of(args, lower.row + r)) + column / kBlock);
    }
}

float greater(float a, float b) { return a > b ? a : b; }

// The largest of a row of a panel, NaNs left out. Halved again and again rather than run through, so that it vectorises.
float largest_of(const float* values, int count) {
    alignas(64) float left[kPanel];
    for (int c = 0; c < kPanel; c++) left[c] = values[c] == values[c] ? values[c] : -INFINITY;
    for (int c = count; c < kPanel; c++) left[c] = -INFINITY;
    for (int c = 0; c < 16; c++) left[c] = greater(left[c], left[c + 16]);
    for (int c = 0; c < 8; c++) left[c] = greater(left[c], left[c + 8]);
    for (int c = 0; c < 4; c++) left[c] = greater(left[c], left[c + 4]);
    return greater(greater(left[0], left[2]), greater(left[1], left[3]));
}

// A strict comparison in rising order of columns keeps the lowest of equals and never lets a NaN win.
void update_best(const LinearArgs& args, const Tile& tile, float* best_value, int32_t* best_index) {
    const int column = tile.panel * kPanel;
    const int count = std::min(kPanel, args.weight->n - column);
    for (int r = 0; r < tile.rows; r++) {
        const float* values = tile.values + r * kPanel;
        const float largest = largest_of(values, count);
        if (!(largest > best_value[tile.row + r])) continue;
        int c = 0;
        while (values[c] != largest) c++;
        best_value[tile.row + r] = largest;
        best_index[tile.row + r] = column + c;
    }
}

void multiply(const LinearArgs& args, const Rows& x, int panel, int row, int rows, float* out) {
    const Weight& weight = *args.weight;
    const char* data = static_cast<const char*>(weight.data) + size_t(panel) * panel_bytes(weight.kind, weight.k);
    const char* first = x.data + size_t(row) * x.stride;
    if (weight.kind == Kind::kBf16)
        bf16_panel(data, weight.k, first, x.stride, rows, out);
    else
        quantized_panel(weight.kind, data, weight.k, first, x.stride, rows, out);
}

}  // namespace

const char* linear_error(const LinearArgs& args) {
    const Weight* weight = args.weight;
    if (!weight || !weight->data) return "a linear layer needs a packed weight.";
    const bool gated = args.epilogue == Epilogue::kSilu || args.epilogue == Epilogue::kGelu;
    if (gated != weight->gated) return "a gated weight goes with the epilogues SILU and GELU, and they with it.";
    if (args.m < 0) return "the number of rows is at least 0.";
    if (!args.x || args.x_stride < size_t(weight->k) * 2) return "a row of activations has 2 bytes a value (bf16, or blocks of 64 bytes).";
    if (kind_is_quantized(weight->kind) && (reinterpret_cast<uintptr_t>(args.x) % 64 != 0 || args.x_stride % 64 != 0))
        return "rows of quantised activations start at multiples of 64 bytes.";
    if (args.epilogue == Epilogue::kArgmax && (!args.best_value || !args.best_index)) return "ARGMAX needs room for its partial results.";
    if (!args.y && args.epilogue != Epilogue::kArgmax) return "a linear layer needs room for its results.";
    if (args.epilogue == Epilogue::kAdd || args.epilogue == Epilogue::kArgmax) {
        if (args.output != Output::kFloat32) return "ADD and ARGMAX have float32 results.";
    }
    if (args.output == Output::kInt8 && !gated) return "int8 results come from gated epilogues only.";
    if (args.softcap > 0.0f && args.epilogue != Epilogue::kStore && args.epilogue != Epilogue::kArgmax)
        return "a soft cap goes with STORE and ARGMAX only.";
    return nullptr;
}

size_t linear_prepared_stride(const Weight& weight) {
    const size_t bytes = weight.kind == Kind::kBf16 ? (bf16_prepared_bytes(weight.k) + 63) / 64 * 64 : 0;
    return bytes > 0 && bytes % 1024 == 0 ? bytes + 64 : bytes;
}

int linear_prepare_items(const LinearArgs& args) {
    const int rows = prepared_per_item(args);
    return linear_prepared_stride(*args.weight) ? (args.m + rows - 1) / rows : 0;
}

void linear_prepare_item(const LinearArgs& args, int item, Scratch&) {
    const size_t stride = linear_prepared_stride(*args.weight);
    const int rows = prepared_per_item(args);
    const int end = std::min(args.m, (item + 1) * rows);
    for (int row = item * rows; row < end; row++)
        bf16_prepare(static_cast<const char*>(args.x) + size_t(row) * args.x_stride, args.weight->k,
                     static_cast<char*>(args.prepared) + size_t(row) * stride);
}

int linear_items(const LinearArgs& args) {
    if (args.m == 0) return 0;
    const Split s = split(args);
    return s.row_blocks * s.groups;
}

void linear_item(const LinearArgs& args, int item, Scratch& scratch) {
    const Split s = split(args);
    const Weight& weight = *args.weight;
    const int tile_rows = panel_rows(weight.kind);
    const int begin = item / s.groups * s.rows, end = std::min(args.m, begin + s.rows);
    const int group = item % s.groups;
    const int first = s.first_panel(group), last = std::min(weight_panels(weight), s.first_panel(group + 1));
    const int tiles = (end - begin + tile_rows - 1) / tile_rows;
    float* values = scratch.get<float>(size_t(tile_rows) * 2 * kPanel);
    float* upper = values + tile_rows * kPanel;
    const Rows x = rows_of(args);

    float* best_value = nullptr;
    int32_t* best_index = nullptr;
    if (args.epilogue == Epilogue::kArgmax) {
        best_value = args.best_value + size_t(item) * args.m;
        best_index = args.best_index + size_t(item) * args.m;
        std::fill(best_value, best_value + args.m, -INFINITY);
        std::fill(best_index, best_index + args.m, 0);
    }

    for (int t = 0; t < tiles; t++) {  // of nearly equal height; their activations stay in the innermost cache while panels pass by
        const int row = begin + int(long(end - begin) * t / tiles);
        const int rows = begin + int(long(end - begin) * (t + 1) / tiles) - row;
        for (int panel = first; panel < last; panel += s.unit) {
            const Tile tile{values, row, rows, panel};
            multiply(args, x, panel, row, rows, values);
            finish_values(args, tile);
            if (args.output == Output::kInt8) {
                const bool pair = panel + 1 < last;
                if (pair) {
                    multiply(args, x, panel + 1, row, rows, upper);
                    finish_values(args, Tile{upper, row, rows, panel + 1});
                }
                store_gated_int8(args, tile, pair ? upper : nullptr);
            } else if (weight.gated) {
                store_gated(args, tile);
            } else {
                if (args.y) store(args, tile);
                if (best_value) update_best(args, tile, best_value, best_index);
            }
        }
    }
}

void linear_argmax(const LinearArgs& args, int32_t* columns) {
    const int items = linear_items(args);
    for (int row = 0; row < args.m; row++) {
        float value = -INFINITY;
        int32_t column = 0;
        for (int item = 0; item < items; item++) {
            const float other = args.best_value[size_t(item) * args.m + row];
            const int32_t index = args.best_index[size_t(item) * args.m + row];
            if (other > value || (other == value && index < column)) {
                value = other;
                column = index;
            }
        }
        columns[row] = column;
    }
}

size_t linear_stride(int k) {
    const size_t bytes = (size_t(k) + kBlock - 1) / kBlock * kBlock * 2;
    return bytes % 1024 == 0 ? bytes + 64 : bytes;
}

void pack_bias(const Weight& weight, const float* bias, float* out) {
    const int columns = weight_panels(weight) * kPanel;
    for (int column = 0; column < columns; column++) {
        if (weight.gated) {
            const int row = column / kPanel * kHalfPanel + column % kHalfPanel, up = column % kPanel / kHalfPanel;
            out[column] = row < weight.n / 2 ? bias[up * (weight.n / 2) + row] : 0.0f;
        } else {
            out[column] = column < weight.n ? bias[column] : 0.0f;
        }
    }
}

}  // namespace octavo
