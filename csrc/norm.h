// RMSNorm of the residual stream into the form that the next product reads: out = x / sqrt(mean(x^2) + eps) * weight.
//
// The sum of squares is sixteen interleaved sums, added up in pairs: the same bits on every ISA and for every batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bf16.h"
#include "quantize.h"
#include "scratch.h"

namespace octavo {

struct NormArgs {
    float* residual;            // [m] rows
    size_t residual_stride;     // bytes between rows
    const float* delta;         // added to the residual first, through its own norm (delta_weight); null: none
    size_t delta_stride;
    const float* delta_weight;  // [width]; null: delta is added as it is
    const float* weight;        // [width]
    float eps;
    int m;
    int width;
    bf16* out;                  // null: not wanted
    size_t out_stride;
    QuantBlock* blocks;         // null: not wanted
    size_t blocks_stride;
};

int norm_items(const NormArgs& args);
void norm_item(const NormArgs& args, int item, Scratch& scratch);

}  // namespace octavo
