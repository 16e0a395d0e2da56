#include "weight.h"

#include <algorithm>
#include <cstring>

#include "bf16.h"
#include "fixed_point.h"
#include "quantize.h"

namespace octavo {

namespace {

constexpr int kPackedPerItem = 1 << 18;  // source values: tens of microseconds
constexpr int kNibbleBytes = 16;         // of one column and block of 32

// GGUF's blocks, as they lie in a file.
struct BlockQ4_0 {
    f16 d;
    uint8_t nibbles[16];  // byte i: values i and i + 16
};
struct BlockQ4_1 {
    f16 d, m;
    uint8_t nibbles[16];
};
struct BlockQ8_0 {
    f16 d;
    int8_t q[32];
};
struct BlockQ4_K {
    f16 d, dmin;
    uint8_t scales[12];     // eight scales and eight minima of 6 bits
    uint8_t nibbles[4][32];  // byte i of group j: value i of sub-blocks 2j and 2j + 1
};
struct BlockQ6_K {
    uint8_t low[2][64];    // of 128 values: byte i holds i and i + 64
    uint8_t high[2][32];   // two bits each of values i, i + 32, i + 64, i + 96
    int8_t scales[16];
    f16 d;
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ8_0) == 34, "packed as in the file");
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ6_K) == 210, "packed as in the file");

size_t source_block_bytes(Kind kind) {
    switch (kind) {
        case Kind::kF32: return 32 * 4;
        case Kind::kF16:
        case Kind::kBf16: return 32 * 2;
        case Kind::kQ4_0: return sizeof(BlockQ4_0);
        case Kind::kQ4_1: return sizeof(BlockQ4_1);
        case Kind::kQ8_0: return sizeof(BlockQ8_0);
        case Kind::kQ4_K: return sizeof(BlockQ4_K);
        case Kind::kQ6_K: return sizeof(BlockQ6_K);
    }
    return 0;
}

void q4_k_scale(const BlockQ4_K& block, int j, uint8_t* scale, uint8_t* minimum) {
    const uint8_t* s = block.scales;
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = uint8_t((s[j + 4] & 15) | (s[j - 4] >> 6 << 4));
        *minimum = uint8_t((s[j + 4] >> 4) | (s[j] >> 6 << 4));
    }
}

// Sub-block j (32 values) of a block, as unsigned integers of 4 and 6 bits.
void q4_k_values(const BlockQ4_K& block, int j, uint8_t* q) {
    for (int i = 0; i < 32; i++) q[i] = (block.nibbles[j / 2][i] >> (j % 2 * 4)) & 15;
}

void q6_k_values(const BlockQ6_K& block, int j, uint8_t* q) {
    const int part = j / 4, quarter = j % 4;
    for (int i = 0; i < 32; i++) {
        const uint8_t low = block.low[part][quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
        q[i] = uint8_t(low | (block.high[part][i] >> (quarter * 2) & 3) << 4);
    }
}

// 16 bytes of nibbles in the packed order: value i below, value i + 16 above.
void join_nibbles(const uint8_t* q, uint8_t* out) {
    for (int i = 0; i < 16; i++) out[i] = uint8_t((q[i] & 15) | (q[i + 16] & 15) << 4);
}

// Upper bits of Q6_K's values in the packed order: byte i of vector u holds, in field f, value 16u + 4f + i % 4 for i < 4.
void join_upper_bits(const uint8_t* q, uint8_t* out) {
    for (int u = 0; u < 2; u++)
        for (int i = 0; i < 4; i++) {
            uint8_t bits = 0;
            for (int f = 0; f < 4; f++) bits |= uint8_t((q[16 * u + 4 * f + i] >> 4) << (2 * f));
            out[4 * u + i] = bits;
        }
}

// Writes one column's groups of four bytes into [groups][16 columns][4].
void place(const uint8_t* bytes, int groups, uint8_t* vectors, int column) {
    for (int g = 0; g < groups; g++) std::memcpy(vectors + g * 64 + column * 4, bytes + g * 4, 4);
}

void place_f16(f16 value, uint8_t* line, int column) { std::memcpy(line + column * 2, &value, 2); }

template <class Block>
const Block& block_at(const uint8_t* row, int index) {
    return *reinterpret_cast<const Block*>(row + size_t(index) * sizeof(Block));
}

// One column (0..31) of one panel, from its row of the source.
void pack_quantized_column(Kind kind, int k, const uint8_t* row, uint8_t* panel, int column) {
    const int half = column / kHalfPanel, lane = column % kHalfPanel;
    for (int b = 0; b < k / kBlock; b++) {
        switch (kind) {
            case Kind::kQ4_0: {
                const BlockQ4_0& from = block_at<BlockQ4_0>(row, b);
                uint8_t* to = panel + size_t(b) * 576;
                place(from.nibbles, 4, to + half * 256, lane);
                place_f16(from.d, to + 512, column);
                break;
            }
            case Kind::kQ4_1: {
                const BlockQ4_1& from = block_at<BlockQ4_1>(row, b);
                uint8_t* to = panel + size_t(b) * 640;
                place(from.nibbles, 4, to + half * 256, lane);
                place_f16(from.d, to + 512, column);
                place_f16(from.m, to + 576, column);
                break;
            }
            case Kind::kQ8_0: {
                const BlockQ8_0& from = block_at<BlockQ8_0>(row, b);
                uint8_t* to = panel + size_t(b) * 1088;
                uint8_t q[32];
                for (int i = 0; i < 32; i++) q[i] = uint8_t(from.q[i] + 128);
                place(q, 8, to + half * 512, lane);
                place_f16(from.d, to + 1024, column);
                break;
            }
            case Kind::kQ4_K: {
                const BlockQ4_K& from = block_at<BlockQ4_K>(row, b / 8);
                uint8_t* super = panel + size_t(b / 8) * (128 + 8 * 576);
                uint8_t* to = super + 128 + size_t(b % 8) * 576;
                uint8_t q[32], nibbles[kNibbleBytes];
                q4_k_values(from, b % 8, q);
                join_nibbles(q, nibbles);
                place(nibbles, 4, to + half * 256, lane);
                q4_k_scale(from, b % 8, to + 512 + column, to + 544 + column);
                if (b % 8 == 0) {
                    place_f16(from.d, super, column);
                    place_f16(from.dmin, super + 64, column);
                }
                break;
            }
            case Kind::kQ6_K: {
                const BlockQ6_K& from = block_at<BlockQ6_K>(row, b / 8);
                uint8_t* super = panel + size_t(b / 8) * (64 + 8 * 832);
                uint8_t* to = super + 64 + size_t(b % 8) * 832;
                uint8_t q[32], nibbles[kNibbleBytes], upper[8];
                q6_k_values(from, b % 8, q);
                join_nibbles(q, nibbles);
                join_upper_bits(q, upper);
                place(nibbles, 4, to + half * 256, lane);
                place(upper, 2, to + 512 + half * 128, lane);
                to[768 + column] = uint8_t(from.scales[b % 8 * 2]);
                to[800 + column] = uint8_t(from.scales[b % 8 * 2 + 1]);
                if (b % 8 == 0) place_f16(from.d, super, column);
                break;
            }
            default: break;
        }
    }
}

// 32 values of a row as bf16, of which `count` exist, from whatever float they are.
void read_bf16(Kind kind, const uint8_t* row, int begin, int count, bf16* out) {
    if (kind == Kind::kBf16) {
        if (count == kBlock) {
            std::memcpy(out, row + size_t(begin) * 2, kBlock * 2);
            return;
        }
        std::memcpy(out, row + size_t(begin) * 2, size_t(count) * 2);
    } else if (kind == Kind::kF16) {
        const f16* values = reinterpret_cast<const f16*>(row) + begin;
        for (int i = 0; i < count; i++) out[i] = float_to_bf16(f16_to_float(values[i]));
    } else {
        const float* values = reinterpret_cast<const float*>(row) + begin;
        for (int i = 0; i < count; i++) out[i] = float_to_bf16(values[i]);
    }
    std::fill(out + count, out + kBlock, bf16(0));
}

// Pairs of k of 32 columns, [column][pair], to [pair][column].
void transpose_pairs(const uint32_t (*from)[kBlock / 2], uint32_t* to) {
    for (int c = 0; c < kPanel; c++)
        for (int i = 0; i < kBlock / 2; i++) to[i * kPanel + c] = from[c][i];
}

void pack_bf16_panel(const PackArgs& args, int panel) {
    const int k = args.weight.k;
    const uint8_t* rows[kPanel];
    Kind kinds[kPanel];
    for (int c = 0; c < kPanel; c++) {
        const SourceRow source = source_row(args, panel * kPanel + c);
        const Segment& segment = args.segments[std::max(0, source.segment)];
        kinds[c] = segment.kind;
        rows[c] = source.segment < 0 ? nullptr : static_cast<const uint8_t*>(segment.rows) + size_t(source.row) * segment.row_bytes;
    }
    char* data = static_cast<char*>(args.data) + size_t(panel) * panel_bytes(Kind::kBf16, k);
#if defined(OCTAVO_FIXED_POINT)
    uint8_t* exponents = reinterpret_cast<uint8_t*>(data);
    data += fixed_point_exponent_bytes(k);
#endif
    uint32_t* to = reinterpret_cast<uint32_t*>(data);
    alignas(64) uint32_t pairs[kPanel][kBlock / 2] = {};
    for (int begin = 0; begin < k; begin += kBlock, to += kPanel * kBlock / 2) {
        const int count = std::clamp(args.source_k - begin, 0, kBlock);
        for (int c = 0; c < kPanel; c++)
            if (rows[c]) read_bf16(kinds[c], rows[c], begin, count, reinterpret_cast<bf16*>(pairs[c]));
#if defined(OCTAVO_FIXED_POINT)
        for (int c = 0; c < kPanel; c++) {
            const int exponent = to_fixed_point(pairs[c], pairs[c]);
            exponents[begin + c] = weight_scale_exponent(exponent);
            if (exponents[begin + c] == 255) std::memset(pairs[c], 0, sizeof pairs[c]);
        }
#endif
        transpose_pairs(pairs, to);
    }
}

void pack_quantized_panel(const PackArgs& args, int panel) {
    const Weight& weight = args.weight;
    const size_t bytes = panel_bytes(weight.kind, weight.k);
    uint8_t* to = static_cast<uint8_t*>(args.data) + size_t(panel) * bytes;
    std::memset(to, 0, bytes);  // a padding column has scales of zero
    for (int c = 0; c < kPanel; c++) {
        const SourceRow source = source_row(args, panel * kPanel + c);
        if (source.segment < 0) continue;
        const Segment& segment = args.segments[source.segment];
        const uint8_t* row = static_cast<const uint8_t*>(segment.rows) + size_t(source.row) * segment.row_bytes;
        pack_quantized_column(weight.kind, weight.k, row, to, c);
    }
}

int panels_per_pack_item(const Weight& weight) { return std::max(1, kPackedPerItem / (kPanel * std::max(1, weight.k))); }

}  // namespace

int kind_block(Kind kind) { return kind == Kind::kQ4_K || kind == Kind::kQ6_K ? 256 : 32; }

bool kind_is_quantized(Kind kind) { return kind != Kind::kF32 && kind != Kind::kF16 && kind != Kind::kBf16; }

size_t panel_bytes(Kind kind, int k) {
    const size_t blocks = size_t(k) / kBlock;
    switch (kind) {
#if defined(OCTAVO_FIXED_POINT)
        case Kind::kBf16: return fixed_point_exponent_bytes(k) + size_t(k) * kPanel * 2;
#else
        case Kind::kBf16: return size_t(k) * kPanel * 2;
#endif
        case Kind::kQ4_0: return blocks * 576;
        case Kind::kQ4_1: return blocks * 640;
        case Kind::kQ8_0: return blocks * 1088;
        case Kind::kQ4_K: return blocks / 8 * (128 + 8 * 576);
        case Kind::kQ6_K: return blocks / 8 * (64 + 8 * 832);
        default: return 0;
    }
}

size_t weight_bytes(const Weight& weight) { return panel_bytes(weight.kind, weight.k) * size_t(weight_panels(weight)); }

SourceRow source_row(const PackArgs& args, int column) {
    if (args.weight.gated) {
        const int row = column / kPanel * kHalfPanel + column % kHalfPanel;
        if (row >= args.weight.n / 2) return {-1, 0};
        return {column % kPanel / kHalfPanel, row};
    }
    for (int s = 0; s < args.segment_count; s++) {
        if (column < args.segments[s].n) return {s, column};
        column -= args.segments[s].n;
    }
    return {-1, 0};
}

const char* pack_error(const PackArgs& args) {
    const Weight& weight = args.weight;
    if (panel_bytes(weight.kind, 256) == 0) return "a packed weight is BF16, Q4_0, Q4_1, Q8_0, Q4_K or Q6_K.";
    if (weight.n < 1 || weight.k < 1) return "a weight has at least one row and one column.";
    if (weight.k % kind_block(weight.kind) != 0) return "the inner dimension is a multiple of 32, and of 256 for Q4_K and Q6_K.";
    if (args.segment_count < 1 || args.segment_count > kMaxSegments) return "a weight is packed from 1 to 8 segments.";
    if (args.source_k < 1 || args.source_k > weight.k) return "the source's rows are at most as long as the weight's inner dimension.";
    if (kind_is_quantized(weight.kind) && args.source_k != weight.k) return "rows of quantised blocks cannot be padded.";
    if (weight.gated && (args.segment_count != 2 || args.segments[0].n != args.segments[1].n))
        return "a gated weight is packed from two segments of equally many rows, gate and up.";
    if (args.data == nullptr || reinterpret_cast<uintptr_t>(args.data) % 64 != 0) return "packed weights start at a multiple of 64 bytes.";
    long rows = 0;
    for (int s = 0; s < args.segment_count; s++) {
        const Segment& segment = args.segments[s];
        rows += segment.n;
        if (segment.n < 1 || segment.rows == nullptr) return "every segment has at least one row.";
        const bool same = kind_is_quantized(weight.kind) ? segment.kind == weight.kind : !kind_is_quantized(segment.kind);
        if (!same) return "a BF16 weight is packed from F32, F16 or BF16 rows, and a quantised one from rows of its own kind.";
        const size_t values = kind_is_quantized(weight.kind) ? 32 * size_t(kind_block(segment.kind)) / 32 : 32;
        if (segment.row_bytes < size_t(args.source_k) * source_block_bytes(segment.kind) / values)
            return "rows of a segment lie at least their own length apart.";
    }
    if (rows != weight.n) return "the segments' rows add up to the weight's.";
    return nullptr;
}

int pack_items(const PackArgs& args) {
    const int panels = panels_per_pack_item(args.weight);
    return (weight_panels(args.weight) + panels - 1) / panels;
}

void pack_item(const PackArgs& args, int item, Scratch&) {
    const int panels = panels_per_pack_item(args.weight);
    const int end = std::min(weight_panels(args.weight), (item + 1) * panels);
    for (int panel = item * panels; panel < end; panel++) {
        if (args.weight.kind == Kind::kBf16)
            pack_bf16_panel(args, panel);
        else
            pack_quantized_panel(args, panel);
    }
}

void unpack_column(const Weight& weight, int column, float* out) {
    const uint8_t* panel = static_cast<const uint8_t*>(weight.data) + size_t(column / kPanel) * panel_bytes(weight.kind, weight.k);
    column %= kPanel;
    const int half = column / kHalfPanel, lane = column % kHalfPanel;
    if (weight.kind == Kind::kBf16) {
#if defined(OCTAVO_FIXED_POINT)
        const int16_t* integers = reinterpret_cast<const int16_t*>(panel + fixed_point_exponent_bytes(weight.k));
        for (int i = 0; i < weight.k; i++)
            out[i] = float(integers[(i / 2 * kPanel + column) * 2 + i % 2]) * weight_unit(panel[i / kBlock * kPanel + column]);
#else
        const bf16* values = reinterpret_cast<const bf16*>(panel);
        for (int i = 0; i < weight.k; i++) out[i] = bf16_to_float(values[(i / 2 * kPanel + column) * 2 + i % 2]);
#endif
        return;
    }
    const auto scale_at = [&](const uint8_t* line) {
        f16 value;
        std::memcpy(&value, line + column * 2, 2);
        return f16_to_float(value);
    };
    const auto nibble = [&](const uint8_t* vectors, int i) {
        return vectors[half * 256 + i % 16 / 4 * 64 + lane * 4 + i % 4] >> (i / 16 * 4) & 15;
    };
    for (int i = 0; i < weight.k; i++) {
        const int b = i / kBlock, j = i % kBlock;
        switch (weight.kind) {
            case Kind::kQ4_0: {
                const uint8_t* from = panel + size_t(b) * 576;
                out[i] = float(nibble(from, j) - 8) * scale_at(from + 512);
                break;
            }
            case Kind::kQ4_1: {
                const uint8_t* from = panel + size_t(b) * 640;
                out[i] = float(nibble(from, j)) * scale_at(from + 512) + scale_at(from + 576);
                break;
            }
            case Kind::kQ8_0: {
                const uint8_t* from = panel + size_t(b) * 1088;
                out[i] = float(from[half * 512 + j / 4 * 64 + lane * 4 + j % 4] - 128) * scale_at(from + 1024);
                break;
            }
            case Kind::kQ4_K: {
                const uint8_t* super = panel + size_t(b / 8) * (128 + 8 * 576);
                const uint8_t* from = super + 128 + size_t(b % 8) * 576;
                const float scale = scale_at(super) * float(from[512 + column]);
                out[i] = float(nibble(from, j)) * scale - scale_at(super + 64) * float(from[544 + column]);
                break;
            }
            case Kind::kQ6_K: {
                const uint8_t* super = panel + size_t(b / 8) * (64 + 8 * 832);
                const uint8_t* from = super + 64 + size_t(b % 8) * 832;
                const int upper = from[512 + half * 128 + j / 16 * 64 + lane * 4 + j % 4] >> (j % 16 / 4 * 2) & 3;
                const int8_t scale = int8_t(from[768 + j / 16 * 32 + column]);
                out[i] = scale_at(super) * float(scale) * float((nibble(from, j) | upper << 4) - 32);
                break;
            }
            default: break;
        }
    }
}

}  // namespace octavo
