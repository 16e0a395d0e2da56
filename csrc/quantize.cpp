#include "quantize.h"

#include <algorithm>

namespace octavo {

namespace {

constexpr int kValuesPerItem = 32768;

int rows_per_item(const QuantizeArgs& args) { return std::max(1, kValuesPerItem / std::max(1, args.k)); }

}  // namespace

int quantize_items(const QuantizeArgs& args) {
    const int rows = rows_per_item(args);
    return (args.m + rows - 1) / rows;
}

void quantize_item(const QuantizeArgs& args, int item, Scratch&) {
    const int rows = rows_per_item(args);
    const int end = std::min(args.m, (item + 1) * rows);
    for (int row = item * rows; row < end; row++) {
        const char* x = static_cast<const char*>(args.x) + size_t(row) * args.x_stride;
        QuantBlock* y = reinterpret_cast<QuantBlock*>(reinterpret_cast<char*>(args.y) + size_t(row) * args.y_stride);
        for (int begin = 0; begin < args.k; begin += kBlock, y++) {
            const int count = std::min(kBlock, args.k - begin);
            alignas(64) float values[kBlock] = {};
            if (args.x_is_bf16) {
                const bf16* from = reinterpret_cast<const bf16*>(x) + begin;
                for (int i = 0; i < count; i++) values[i] = bf16_to_float(from[i]);
            } else {
                std::memcpy(values, reinterpret_cast<const float*>(x) + begin, size_t(count) * sizeof(float));
            }
            quantize_block(values, y);
        }
    }
}

}  // namespace octavo
