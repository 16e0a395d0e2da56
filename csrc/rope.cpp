#include "rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lanes.h"

namespace octavo {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kItemValues = 16 * 1024;  // of qkv: some microseconds

int item_tokens(const RopeArgs& args) {
    return std::max(1, kItemValues / ((args.heads + 2 * args.kv_heads) * args.head_dim));
}

// x / sqrt(mean(x^2) + eps) * weight
void normalise(float* head, int dim, const float* weight, float eps) {
    Lanes squares = Lanes::set(0.0f);
    for (int i = 0; i < dim; i += Lanes::count) squares = fma(Lanes::load(head + i), Lanes::load(head + i), squares);
    const Lanes factor = Lanes::set(1.0f / std::sqrt(sum(squares) / float(dim) + eps));
    for (int i = 0; i < dim; i += Lanes::count) (Lanes::load(head + i) * factor * Lanes::load(weight + i)).store(head + i);
}

void rotate(float* head, const float* turns, int rotary_dim) {
    const int half = rotary_dim / 2;
    const float* cosine = turns;
    const float* sine = turns + half;
    for (int i = 0; i < half; ++i) {
        const float a = head[i], b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

void to_bf16(const float* from, int count, char* to) {
    bf16* out = reinterpret_cast<bf16*>(to);
    for (int i = 0; i < count; ++i) out[i] = float_to_bf16(from[i]);
}

// int8 = round(value * 127 / largest), to nearest, ties to even; the scale is largest / 127.
void to_int8(const float* from, int count, char* to, char* scale) {
    float largest = 0.0f;
    for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(from[i]));
    const float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no room for a fraction
    for (int i = 0; i < count; ++i) to[i] = char(int32_t((from[i] * factor + kRound) - kRound));
    const float step = largest / 127.0f;
    std::memcpy(scale, &step, sizeof step);
}

void store_head(const KvView& kv, const float* head, int dim, char* token, int kv_head) {
    char* to = token + kv_head * kv.head_stride;
    if (kv.kind == KvKind::kBf16) {
        to_bf16(head, dim, to);
    } else {
        to_int8(head, dim, to, token + kv.scale_offset + kv_head * int64_t(sizeof(float)));
    }
}

void token_to_cache(const RopeArgs& args, int token, int slot, int position) {
    alignas(64) float head[kMaxHeadDim];
    const int dim = args.head_dim;
    const float* from = args.qkv + token * args.ldqkv;
    const float* turns = args.turns + int64_t(position) * args.rotary_dim;
    const auto turned = [&](const float* source, const float* norm) {
        std::memcpy(head, source, size_t(dim) * sizeof(float));
        if (norm) normalise(head, dim, norm, args.eps);
        rotate(head, turns, args.rotary_dim);
        return head;
    };
    bf16* q = args.q + token * args.ldq;
    for (int h = 0; h < args.heads; ++h, from += dim) {
        to_bf16(turned(from, args.q_norm), dim, reinterpret_cast<char*>(q + h * dim));
    }
    const int64_t index = args.kv.token_index(slot, position);
    char* keys = args.kv.keys + index * args.kv.token_stride;
    char* values = args.kv.values + index * args.kv.token_stride;
    for (int h = 0; h < args.kv_heads; ++h, from += dim) store_head(args.kv, turned(from, args.k_norm), dim, keys, h);
    for (int h = 0; h < args.kv_heads; ++h, from += dim) store_head(args.kv, from, dim, values, h);
}

}  // namespace

void rope_turns(const double* frequencies, int rotary_dim, int positions, float* turns) {
    const int half = rotary_dim / 2;
    for (int position = 0; position < positions; ++position, turns += rotary_dim) {
        for (int i = 0; i < half; ++i) {
            turns[i] = float(std::cos(position * frequencies[i]));
            turns[i + half] = float(std::sin(position * frequencies[i]));
        }
    }
}

int rope_items(const RopeArgs& args) {
    const int each = item_tokens(args);
    return (args.tokens + each - 1) / each;
}

void rope_item(const RopeArgs& args, int item, Scratch&) {
    const int each = item_tokens(args);
    const int begin = item * each, end = std::min(args.tokens, begin + each);
    // The row that holds the item's first token: the last that begins at or before it.
    const auto before = [](int token, const Row& row) { return token < row.first; };
    const Row* row = std::upper_bound(args.rows, args.rows + args.row_count, begin, before) - 1;
    for (int token = begin; token < end; ++token) {
        while (token >= row->first + row->length) ++row;
        token_to_cache(args, token, row->slot, row->start + token - row->first);
    }
}

}  // namespace octavo
