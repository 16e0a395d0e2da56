// Weights of a linear layer, packed once at load for the kernels of this ISA.
//
// Columns of the packed matrix are outputs (rows of the source). They lie in panels of 32; within a panel everything that a step of
// k needs is contiguous, so one row of activations streams memory linearly, and a tile of rows finds its panel in cache:
//
//   bf16            [k/2][32 columns][2]                                            (a row of an AMX tile is one cache line)
//                   in fixed point (fixed_point.h): [k/32][32] exponent bytes of scales, to a multiple of 64; [k/2][32][2] int16
//   Q4_0, Q4_1      [k/32] of { [2 halves][4 groups][16 columns][4 bytes] nibbles, [32] scales, Q4_1: [32] minima }, f16
//   Q8_0            [k/32] of { [2 halves][8 groups][16 columns][4 bytes] q + 128, [32] scales }
//   Q4_K            [k/256] of { [32] d, [32] dmin, f16; [8] of { nibbles, [32] scale bytes, [32] minimum bytes } }
//   Q6_K            [k/256] of { [32] d, f16; [8] of { nibbles, [2 halves][2][16][4 bytes] upper bits, [2][32] scale bytes } }
//
// Group g holds k = 4g .. 4g+3 of its block; of nibbles, vector v holds group v in the lower and group v + 4 in the upper half.
// Every part is a multiple of 64 bytes, so that vector loads from 64-byte-aligned memory never cross a cache line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scratch.h"

namespace octavo {

constexpr int kPanel = 32;       // columns
constexpr int kHalfPanel = 16;   // columns of one vector; gate and up alternate in these
constexpr int kMaxSegments = 8;

// Element types, by GGML's numbers. A packed weight is of one of the last six; F32 and F16 are sources only.
enum class Kind : int32_t { kF32 = 0, kF16 = 1, kBf16 = 30, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14 };

struct Weight {
    Kind kind;
    bool gated;        // gate and up interleaved: columns 32p .. 32p+15 are gate's outputs 16p .. 16p+15, the next 16 are up's
    int n;             // columns: rows of all segments together
    int k;             // a multiple of 32; of 256 for Q4_K and Q6_K
    const void* data;  // weight_bytes, 64-byte aligned
};

// Values along k that a kind keeps together: 32 or 256. k is a multiple of it.
int kind_block(Kind kind);
bool kind_is_quantized(Kind kind);

inline int weight_panels(const Weight& weight) {
    return weight.gated ? (weight.n / 2 + kHalfPanel - 1) / kHalfPanel : (weight.n + kPanel - 1) / kPanel;
}
size_t panel_bytes(Kind kind, int k);
inline size_t fixed_point_exponent_bytes(int k) { return (size_t(k) + 63) / 64 * 64; }
size_t weight_bytes(const Weight& weight);

// Rows of the source, row-major, in the format of the file.
struct Segment {
    const void* rows;
    size_t row_bytes;  // from one row to the next
    int n;
    Kind kind;         // F32, F16 or BF16 for a bf16 weight, else the weight's own kind
};

// Segments are stacked in order (query, key, value); of a gated weight there are two of equal n, gate and up.
struct PackArgs {
    Weight weight;
    Segment segments[kMaxSegments];
    int segment_count;
    int source_k;  // values in a source row; below weight.k only for bf16, where the rest becomes zeros
    void* data;  // where weight.data points
};

// Why these arguments cannot be packed, as a sentence; nullptr where they can.
const char* pack_error(const PackArgs& args);
int pack_items(const PackArgs& args);
void pack_item(const PackArgs& args, int item, Scratch& scratch);

// The source row of a packed column; segment -1 for padding.
struct SourceRow {
    int segment;
    int row;
};
SourceRow source_row(const PackArgs& args, int column);

// Unpacks one column into k float32: for tests, and for embedding rows of a tied head. What fixed point has rounded stays so; what it
// cannot hold is NaN.
void unpack_column(const Weight& weight, int column, float* out);

}  // namespace octavo
