// How a step's attention is cut into units and items. Only speed depends on what is decided here.
#include <algorithm>

#include "attention.h"
#include "attention_products.h"
#include "attention_tile.h"

namespace octavo {
namespace {

constexpr int kMostRows = 384;  // query rows that share a packed tile: packing is then little beside the rest
constexpr int kLeastRows = 48;  // when more threads are to have a share
constexpr int kFewRows = 16;    // up to this many, reading keys and values costs more than computing: heads go together
constexpr int64_t kGroupBytes = 128 * 1024;  // a tile's keys and values of a unit's heads: it and the next fit a core's cache
constexpr int64_t kMostPartials = 16 * 1024 * 1024;  // floats
constexpr double kSmallestItem = 20e3;   // ns; of several units, if need be
constexpr double kLargestItem = 100e3;   // ns; a single unit may take more

// Nanoseconds of one head's tokens, roughly: reading their keys and values, and computing `rows` queries.
double token_cost(const AttentionShape& shape, int rows) { return shape.head_dim * (0.25 + 0.015 * rows); }

// Nanoseconds of a unit: what a thread does before the first token and after the last, and its tokens, all tiles taken for whole
// ones but the row's last.
double unit_cost(const AttentionShape& shape, const AttentionUnit& unit, const Row& row) {
    const int rows = unit.queries * (shape.heads / shape.kv_heads);
    const int end = std::min((unit.tile + unit.tiles) * kTile, row.start + unit.query + unit.queries);
    return 300.0 + double(end - unit.tile * kTile) * unit.heads * token_cost(shape, rows);
}

// The size of parts, at most `most` each, that a whole is cut into as evenly as their number allows.
int even_part(int whole, int most) {
    const int parts = (whole + most - 1) / most;
    return (whole + parts - 1) / parts;
}

}  // namespace

const char* attention_error(const AttentionShape& shape) {
    if (shape.head_dim % 16 != 0 || shape.head_dim < 16 || shape.head_dim > 256) {
        return "head_dim is not supported by the native attention: multiples of 16 from 16 to 256 are.";
    }
    if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
        return "the number of heads is no multiple of the number of kv heads.";
    }
    if (int64_t(shape.kv_heads) * (shape.head_dim * 2 + 4) > kZeroBytes) {
        return "a token's keys of all kv heads take more than 64 KiB, which the native attention does not support.";
    }
    return nullptr;
}

void attention_plan(AttentionPlan& plan, const AttentionShape& shape, const Row* rows, int row_count, int window, int workers) {
    plan.shape = shape;
    plan.window = window;
    plan.units.clear();
    plan.merges.clear();
    plan.begins.clear();

    const int group = shape.heads / shape.kv_heads;
    int64_t all_rows = 0;
    for (int r = 0; r < row_count; ++r) all_rows += int64_t(rows[r].length) * shape.heads;
    const int64_t share = all_rows / (4 * std::max(1, workers));
    const int most_queries = std::max(1, int(std::clamp<int64_t>(share, kLeastRows, kMostRows)) / group);
    const int64_t head_bytes = int64_t(kTile) * shape.head_dim * (shape.kind == KvKind::kBf16 ? 4 : 2);
    const int grouped_heads = int(std::max<int64_t>(1, kGroupBytes / head_bytes));

    // Whole units first, the row's last queries (the most work) before its first.
    double total = 0;
    for (int r = 0; r < row_count; ++r) {
        const Row& row = rows[r];
        if (row.length <= 0) continue;
        const int queries = even_part(row.length, most_queries);
        const int heads = even_part(shape.kv_heads, queries * group <= kFewRows ? grouped_heads : 1);
        for (int begin = (row.length - 1) / queries * queries; begin >= 0; begin -= queries) {
            const int count = std::min(queries, row.length - begin);
            const int first = window > 0 ? std::max(0, row.start + begin - window + 1) / kTile : 0;
            const int last = (row.start + begin + count - 1) / kTile;
            for (int head = 0; head < shape.kv_heads; head += heads) {
                const int some = std::min(heads, shape.kv_heads - head);
                plan.units.push_back({r, begin, count, head, some, first, last - first + 1, -1});
                total += unit_cost(shape, plan.units.back(), row);
            }
        }
    }

    // Cut the tiles of units so long that threads would wait for them.
    const double target = std::max(kSmallestItem, total / (std::max(1, workers) * 6));
    int64_t partials = 0;
    const size_t whole = plan.units.size();
    for (size_t i = 0; i < whole; ++i) {
        const AttentionUnit unit = plan.units[i];
        const double cost = unit_cost(shape, unit, rows[unit.row]);
        const int64_t tile_floats = partial_floats(shape, unit);
        if (unit.tiles == 1 || cost < 1.5 * target || partials + tile_floats * unit.tiles > kMostPartials) continue;
        const int pieces = std::min<int>(unit.tiles, int(cost / target) + 1);
        AttentionUnit piece = unit;
        piece.partial = partials;
        plan.merges.push_back(piece);
        for (int p = 0; p < pieces; ++p) {
            const int from = int(int64_t(unit.tiles) * p / pieces), to = int(int64_t(unit.tiles) * (p + 1) / pieces);
            piece.tile = unit.tile + from;
            piece.tiles = to - from;
            piece.partial = partials + tile_floats * from;
            if (p == 0) {
                plan.units[i] = piece;
            } else {
                plan.units.push_back(piece);
            }
        }
        partials += tile_floats * unit.tiles;
    }
    partials += Lanes::count;  // folding reads so far
    if (plan.partials.size() < size_t(partials)) plan.partials.resize(partials);

    // Neighbours share an item until it is worth claiming: within one, the next unit's tokens are prefetched.
    const double worth = std::clamp(total / (std::max(1, workers) * 6), kSmallestItem, kLargestItem);
    double cost = 0;
    for (size_t i = 0; i < plan.units.size(); ++i) {
        const AttentionUnit& unit = plan.units[i];
        if (cost == 0) plan.begins.push_back(int32_t(i));
        cost += unit_cost(shape, unit, rows[unit.row]);
        if (cost >= worth) cost = 0;
    }
    plan.begins.push_back(int32_t(plan.units.size()));
}

}  // namespace octavo
