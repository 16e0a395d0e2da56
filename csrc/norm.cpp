#include "norm.h"

#include <algorithm>
#include <cmath>

namespace octavo {

namespace {

constexpr int kValuesPerItem = 16384;
constexpr int kSums = 16;

int rows_per_item(const NormArgs& args) { return std::max(1, kValuesPerItem / args.width); }

template <class T>
T* row_of(T* rows, size_t stride, int row) {
    return reinterpret_cast<T*>(const_cast<char*>(reinterpret_cast<const char*>(rows)) + size_t(row) * stride);
}

float inverse_rms(const float* x, int width, float eps) {
    float sums[kSums] = {};
    int i = 0;
    for (; i + kSums <= width; i += kSums)
        for (int j = 0; j < kSums; j++) sums[j] += x[i + j] * x[i + j];
    for (int j = 0; i + j < width; j++) sums[j] += x[i + j] * x[i + j];
    for (int half = kSums / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return 1.0f / std::sqrt(sums[0] / float(width) + eps);
}

void add_delta(const NormArgs& args, int row, float* residual) {
    const float* delta = row_of(args.delta, args.delta_stride, row);
    if (!args.delta_weight) {
        for (int i = 0; i < args.width; i++) residual[i] += delta[i];
        return;
    }
    const float factor = inverse_rms(delta, args.width, args.eps);
    for (int i = 0; i < args.width; i++) residual[i] += delta[i] * factor * args.delta_weight[i];
}

}  // namespace

int norm_items(const NormArgs& args) {
    const int rows = rows_per_item(args);
    return (args.m + rows - 1) / rows;
}

void norm_item(const NormArgs& args, int item, Scratch& scratch) {
    const int width = args.width;
    const int padded = (width + kBlock - 1) / kBlock * kBlock;
    float* values = scratch.get<float>(size_t(padded));
    std::fill(values + width, values + padded, 0.0f);
    const int rows = rows_per_item(args);
    const int end = std::min(args.m, (item + 1) * rows);
    for (int row = item * rows; row < end; row++) {
        float* residual = row_of(args.residual, args.residual_stride, row);
        if (args.delta) add_delta(args, row, residual);
        const float factor = inverse_rms(residual, width, args.eps);
        for (int i = 0; i < width; i++) values[i] = residual[i] * factor * args.weight[i];
        if (args.out) {
            bf16* out = row_of(args.out, args.out_stride, row);
            for (int i = 0; i < width; i++) out[i] = float_to_bf16(values[i]);
        }
        if (args.blocks) {
            QuantBlock* blocks = row_of(args.blocks, args.blocks_stride, row);
            for (int i = 0; i < padded; i += kBlock) quantize_block(values + i, blocks + i / kBlock);
        }
    }
}

}  // namespace octavo
