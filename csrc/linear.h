// Linear layers: y = x W^T + bias over packed weights, and what follows it at once.
//
// A row's result is bitwise the same whatever m is, wherever the row lies and whichever item computes it: every output is one chain
// of accumulation over k, in order, and every tile shape issues the same operations for it. Quantised kinds sum exact integers per
// block and then compute acc = fma(weight scale, float(sum) * activation scale, acc), so they agree bitwise between ISAs too.
//
// Compile with -ffp-contract=off: where a product is fused into an addition is stated in the code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quantize.h"
#include "scratch.h"
#include "weight.h"

namespace octavo {

enum class Epilogue : int32_t {
    kStore = 0,   // y = result; float32 or bf16 [m][n]
    kAdd = 1,     // y += result; float32 [m][n]
    kSilu = 2,    // y = silu(gate) * up, of a gated weight; float32, bf16 or int8 [m][n/2]
    kGelu = 3,    // the same with gelu (tanh)
    kArgmax = 4,  // the largest result of each row and its column; y, float32, is written too unless it is null
};

enum class Output : int32_t { kFloat32 = 0, kBf16 = 1, kInt8 = 2 };  // kInt8: rows of QuantBlock

struct LinearArgs {
    const Weight* weight;
    const void* x;       // bf16 [m][k] for a bf16 weight, else QuantBlock [m][k/32]
    size_t x_stride;     // bytes from row to row, at best linear_stride(k); 64-byte aligned rows are fastest
    int m;
    void* y;
    size_t y_stride;     // bytes from row to row
    const float* bias;   // [32 * weight_panels], in packed order (pack_bias); null: none
    Epilogue epilogue;
    Output output;
    float softcap;       // kStore, kArgmax: cap * tanh(result / cap); 0: none
    float* best_value;   // kArgmax: [linear_items][m]
    int32_t* best_index;
    int threads;         // how many will share the items: a hint for their size, without effect on results
    void* prepared;      // [m][linear_prepared_stride], 64-byte aligned; null where that is 0
};

// Why these arguments cannot be computed, as a sentence; nullptr where they can.
const char* linear_error(const LinearArgs& args);

// Some ISAs convert rows before they multiply them: once, in a phase of its own before the items. Bytes from one converted row to the
// next; 0: x is read as it is, and there is nothing to prepare.
size_t linear_prepared_stride(const Weight& weight);
int linear_prepare_items(const LinearArgs& args);
void linear_prepare_item(const LinearArgs& args, int item, Scratch& scratch);

int linear_items(const LinearArgs& args);
void linear_item(const LinearArgs& args, int item, Scratch& scratch);

// After all items of a kArgmax: the column of each row's largest result, the lowest of equals; 0 where all are NaN.
void linear_argmax(const LinearArgs& args, int32_t* columns);

// Bytes between rows of activations (bf16 and QuantBlock rows are equally long) that keep rows of a tile out of each other's cache sets.
size_t linear_stride(int k);

// Biases of the segments, stacked, into packed order with zeros as padding: out has 32 * weight_panels values.
void pack_bias(const Weight& weight, const float* bias, float* out);

}  // namespace octavo
