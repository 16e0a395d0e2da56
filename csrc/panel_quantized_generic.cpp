// Quantised panels in plain C++ for the compiler to vectorise: the baseline, and the definition of what the others compute.
#if !defined(__AVX2__)

#include <cstring>

#include "bf16.h"
#include "panel.h"
#include "quantize.h"

namespace octavo {

namespace {

// A block of 32 k of the panel: integers, and for each part (two of 16 for Q6_K, else one) the scale; the minimum where there is one.
struct Block {
    int16_t q[kBlock][kPanel];
    float scale[2][kPanel];
    float minimum[kPanel];
};

void read_f16(const uint8_t* from, float* to) {
    f16 values[kPanel];
    std::memcpy(values, from, sizeof values);
    for (int c = 0; c < kPanel; c++) to[c] = f16_to_float(values[c]);
}

void read_nibbles(const uint8_t* from, Block* block) {
    for (int i = 0; i < kBlock; i++)
        for (int c = 0; c < kPanel; c++) {
            const uint8_t byte = from[c / 16 * 256 + i % 16 / 4 * 64 + c % 16 * 4 + i % 4];
            block->q[i][c] = int16_t(byte >> (i / 16 * 4) & 15);
        }
}

void subtract(int zero, Block* block) {
    for (int i = 0; i < kBlock; i++)
        for (int c = 0; c < kPanel; c++) block->q[i][c] = int16_t(block->q[i][c] - zero);
}

void read_block(Kind kind, const uint8_t* panel, int b, Block* block) {
    switch (kind) {
        case Kind::kQ4_0: {
            const uint8_t* from = panel + size_t(b) * 576;
            read_nibbles(from, block);
            subtract(8, block);
            read_f16(from + 512, block->scale[0]);
            break;
        }
        case Kind::kQ4_1: {
            const uint8_t* from = panel + size_t(b) * 640;
            read_nibbles(from, block);
            read_f16(from + 512, block->scale[0]);
            read_f16(from + 576, block->minimum);
            break;
        }
        case Kind::kQ8_0: {
            const uint8_t* from = panel + size_t(b) * 1088;
            for (int i = 0; i < kBlock; i++)
                for (int c = 0; c < kPanel; c++) block->q[i][c] = from[c / 16 * 512 + i / 4 * 64 + c % 16 * 4 + i % 4];
            subtract(128, block);
            read_f16(from + 1024, block->scale[0]);
            break;
        }
        case Kind::kQ4_K: {
            const uint8_t* super = panel + size_t(b / 8) * (128 + 8 * 576);
            const uint8_t* from = super + 128 + size_t(b % 8) * 576;
            read_nibbles(from, block);
            read_f16(super, block->scale[0]);
            read_f16(super + 64, block->minimum);
            for (int c = 0; c < kPanel; c++) {
                block->scale[0][c] *= float(from[512 + c]);
                block->minimum[c] *= -float(from[544 + c]);
            }
            break;
        }
        case Kind::kQ6_K: {
            const uint8_t* super = panel + size_t(b / 8) * (64 + 8 * 832);
            const uint8_t* from = super + 64 + size_t(b % 8) * 832;
            read_nibbles(from, block);
            for (int i = 0; i < kBlock; i++)
                for (int c = 0; c < kPanel; c++) {
                    const uint8_t byte = from[512 + c / 16 * 128 + i / 16 * 64 + c % 16 * 4 + i % 4];
                    block->q[i][c] = int16_t(block->q[i][c] | (byte >> (i % 16 / 4 * 2) & 3) << 4);
                }
            subtract(32, block);
            float d[kPanel];
            read_f16(super, d);
            for (int part = 0; part < 2; part++)
                for (int c = 0; c < kPanel; c++) block->scale[part][c] = d[c] * float(int8_t(from[768 + part * 32 + c]));
            break;
        }
        default: break;
    }
}

}  // namespace

void quantized_panel(Kind kind, const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    const bool has_minimum = kind == Kind::kQ4_1 || kind == Kind::kQ4_K;
    const int parts = kind == Kind::kQ6_K ? 2 : 1;
    std::memset(out, 0, size_t(rows) * kPanel * sizeof(float));
    Block block;
    for (int b = 0; b < k / kBlock; b++) {
        read_block(kind, static_cast<const uint8_t*>(panel), b, &block);
        for (int r = 0; r < rows; r++) {
            const QuantBlock& a = reinterpret_cast<const QuantBlock*>(static_cast<const char*>(x) + size_t(r) * x_stride)[b];
            float* to = out + r * kPanel;
            for (int part = 0; part < parts; part++) {
                int32_t sum[kPanel] = {};
                for (int i = part * kBlock / parts; i < (part + 1) * kBlock / parts; i++)
                    for (int c = 0; c < kPanel; c++) sum[c] += int32_t(block.q[i][c]) * a.q[i];
                for (int c = 0; c < kPanel; c++) to[c] = __builtin_fmaf(block.scale[part][c], float(sum[c]) * a.scale, to[c]);
            }
            if (has_minimum)
                for (int c = 0; c < kPanel; c++) to[c] = __builtin_fmaf(block.minimum[c], a.scaled_sum, to[c]);
        }
    }
}

}  // namespace octavo

#endif
