// Attention: the walk over units and tiles. See attention.h for how the work is cut, attention_tile.h for one tile's mathematics.
#include "attention.h"

#include <algorithm>
#include <cstring>

#include "attention_products.h"
#include "attention_tile.h"

namespace octavo {
namespace {

using Packed = Products::Packed;

// What tokens read that are not there: no kernel ever touches what lies behind a sequence's last token.
alignas(64) const char kZeros[kZeroBytes] = {};

// Where the rows of one tile are: of every token that some query sees, then zeros up to a whole step.
struct TileRows {
    const char* keys[kTile];
    const char* values[kTile];
    int begin, end;  // tokens of the tile, multiples of kTokenStep
    int seen;        // the first token that nobody sees

    void find(const KvView& kv, int slot, int tile, int low, int high) {
        const int base = tile * kTile;
        begin = low / kTokenStep * kTokenStep;
        end = (high + kTokenStep - 1) / kTokenStep * kTokenStep;
        seen = high;
        kv.each_run(slot, base + begin, base + high, [&](int64_t index, int position, int tokens) {
            const char* key = kv.keys + index * kv.token_stride;
            const char* value = kv.values + index * kv.token_stride;
            const char** key_row = keys + (position - base);
            const char** value_row = values + (position - base);
            for (int i = 0; i < tokens; ++i) {
                key_row[i] = key + i * kv.token_stride;
                value_row[i] = value + i * kv.token_stride;
            }
        });
        for (int t = high; t < end; ++t) keys[t] = values[t] = kZeros;
    }
};

// The tiles of an item's units, one after the other.
struct Cursor {
    const AttentionUnit* unit;
    const AttentionUnit* end;
    int tile = 0;  // of the unit

    bool done() const { return unit == end; }
    void advance() {
        if (++tile == unit->tiles) {
            tile = 0;
            ++unit;
        }
    }
};

// A thread's memory for one item, cut from its scratch.
struct Workspace {
    TileRows* rows[2];
    Packed* keys;
    Packed* values;
    Packed* queries;
    Packed* probabilities;
    float* scores;
    float* tile_results;
    float* results;
    float* tops;
    float* key_scales;
    float* value_scales;

    Workspace(Scratch& scratch, int head_dim, int most_rows) {
        const int width = Products::padded(head_dim), strip = Products::kStrip;
        const int padded_rows = (most_rows + strip - 1) / strip * strip;
        size_t bytes = 0;
        const auto plan = [&](size_t size) {
            const size_t at = bytes;
            bytes += (size + 63) / 64 * 64;
            return at;
        };
        const size_t at[] = {plan(sizeof(TileRows)),
                             plan(sizeof(TileRows)),
                             plan(sizeof(Packed) * kTile * width),
                             plan(sizeof(Packed) * kTile * width),
                             plan(sizeof(Packed) * padded_rows * width),
                             plan(sizeof(Packed) * strip * kTile),
                             plan(sizeof(float) * strip * kTile),
                             plan(sizeof(float) * strip * result_width(head_dim)),
                             plan(sizeof(float) * padded_rows * result_width(head_dim)),
                             plan(sizeof(float) * padded_rows),
                             plan(sizeof(float) * kTile),
                             plan(sizeof(float) * kTile)};
        char* memory = scratch.get<char>(bytes);
        rows[0] = reinterpret_cast<TileRows*>(memory + at[0]);
        rows[1] = reinterpret_cast<TileRows*>(memory + at[1]);
        keys = reinterpret_cast<Packed*>(memory + at[2]);
        values = reinterpret_cast<Packed*>(memory + at[3]);
        queries = reinterpret_cast<Packed*>(memory + at[4]);
        probabilities = reinterpret_cast<Packed*>(memory + at[5]);
        scores = reinterpret_cast<float*>(memory + at[6]);
        tile_results = reinterpret_cast<float*>(memory + at[7]);
        results = reinterpret_cast<float*>(memory + at[8]);
        tops = reinterpret_cast<float*>(memory + at[9]);
        key_scales = reinterpret_cast<float*>(memory + at[10]);
        value_scales = reinterpret_cast<float*>(memory + at[11]);
    }
};

class ItemWalk {
public:
    ItemWalk(const AttentionArgs& args, Scratch& scratch, int most_rows)
        : args_(args),
          shape_(args.plan->shape),
          group_(shape_.heads / shape_.kv_heads),
          width_(result_width(shape_.head_dim)),
          scoring_(scoring(args.scale, args.softcap)),
          work_(scratch, shape_.head_dim, most_rows) {}

    void run(const AttentionUnit* begin, const AttentionUnit* end) {
        Cursor now{begin, end}, next{begin, end};
        next.advance();
        find(now, work_.rows[0]);
        for (int turn = 0; !now.done(); turn ^= 1) {
            const TileRows* ahead = nullptr;
            if (!next.done()) {
                find(next, work_.rows[turn ^ 1]);
                ahead = work_.rows[turn ^ 1];
            }
            if (now.tile == 0) open(*now.unit);
            compute(*now.unit, now.tile, *work_.rows[turn], ahead, next);
            const AttentionUnit& unit = *now.unit;
            if (now.tile + 1 == unit.tiles && unit.partial < 0) finish(args_, unit, work_.results, width_);
            now = next;
            if (!next.done()) next.advance();
        }
    }

    // Writes the output of a unit's rows.
    static void finish(const AttentionArgs& args, const AttentionUnit& unit, const float* results, int width) {
        const AttentionShape& shape = args.plan->shape;
        const int group = shape.heads / shape.kv_heads;
        const int padded = width - Lanes::count;
        bf16* out = args.out + (args.rows[unit.row].first + unit.query) * args.ldo + int64_t(unit.head) * group * shape.head_dim;
        for (int h = 0; h < unit.heads; ++h) {
            for (int query = 0; query < unit.queries; ++query) {
                for (int g = 0; g < group; ++g) {
                    const float total = sum(Lanes::load(results + padded));
                    Products::finish(results, 1.0f / total, shape.head_dim, out + query * args.ldo + (h * group + g) * shape.head_dim);
                    results += width;
                }
            }
        }
    }

private:
    void find(const Cursor& cursor, TileRows* rows) const {
        const AttentionUnit& unit = *cursor.unit;
        const Row& row = args_.rows[unit.row];
        const int first = row.start + unit.query, tile = unit.tile + cursor.tile;
        rows->find(args_.kv, row.slot, tile, seen_tokens(first, tile, args_.plan->window).low,
                   seen_tokens(first + unit.queries - 1, tile, args_.plan->window).high);
    }

    // Packs a unit's queries: [head][query][head of the group]. Its results are empty so far.
    void open(const AttentionUnit& unit) {
        const int packed_width = Products::padded(shape_.head_dim);
        const int rows = unit.queries * group_;
        const bf16* q = args_.q + (args_.rows[unit.row].first + unit.query) * args_.ldq;
        Packed* packed = work_.queries;
        for (int head = unit.head; head < unit.head + unit.heads; ++head) {
            for (int query = 0; query < unit.queries; ++query) {
                for (int g = 0; g < group_; ++g) {
                    Products::pack_query(q + query * args_.ldq + (head * group_ + g) * shape_.head_dim, shape_.head_dim, packed);
                    packed += packed_width;
                }
            }
        }
        std::fill(work_.tops, work_.tops + unit.heads * rows, kNothing);
    }

    void compute(const AttentionUnit& unit, int tile_of_unit, const TileRows& rows, const TileRows* ahead, const Cursor& next) {
        if (args_.kv.kind == KvKind::kBf16) {
            compute_kind<KvKind::kBf16>(unit, tile_of_unit, rows, ahead, next);
        } else {
            compute_kind<KvKind::kInt8>(unit, tile_of_unit, rows, ahead, next);
        }
    }

    template <KvKind kind>
    void compute_kind(const AttentionUnit& unit, int tile_of_unit, const TileRows& rows, const TileRows* ahead, const Cursor& next) {
        constexpr bool kScaled = kind == KvKind::kInt8;
        const int tile = unit.tile + tile_of_unit;
        const int tile_rows = unit.queries * group_;
        const int first = args_.rows[unit.row].start + unit.query;
        const int packed_width = Products::padded(shape_.head_dim);
        float* partial = nullptr;
        if (unit.partial >= 0) partial = args_.plan->partials.data() + unit.partial + partial_floats(shape_, unit) * tile_of_unit;

        const int64_t ahead_offset = ahead ? next.unit->head * args_.kv.head_stride : 0;
        const int ahead_lines = ahead ? int((next.unit->heads * args_.kv.head_stride + 63) / 64) : 0;
        const int ahead_rows = ahead ? ahead->seen - ahead->begin : 0;
        Prefetcher next_keys(ahead ? ahead->keys + ahead->begin : nullptr, ahead_rows, ahead_offset, ahead_lines);
        Prefetcher next_values(ahead ? ahead->values + ahead->begin : nullptr, ahead_rows, ahead_offset, ahead_lines);

        for (int h = 0; h < unit.heads; ++h) {
            const int64_t offset = (unit.head + h) * args_.kv.head_stride;
            Products::pack_keys<kind>(rows.keys, offset, shape_.head_dim, rows.begin, rows.end, work_.keys, next_keys);
            Products::pack_values<kind>(rows.values, offset, shape_.head_dim, rows.begin, rows.end, work_.values, next_values);
            if constexpr (kScaled) gather_scales(rows, unit.head + h);

            for (int at = 0; at < tile_rows; at += Products::kStrip) {
                const int count = std::min(Products::kStrip, tile_rows - at);
                const Seen seen_first = seen_tokens(first + at / group_, tile, args_.plan->window);
                const Seen seen_last = seen_tokens(first + (at + count - 1) / group_, tile, args_.plan->window);
                const int begin = seen_first.low / kTokenStep * kTokenStep;
                const int end = (seen_last.high + kTokenStep - 1) / kTokenStep * kTokenStep;
                const int row = h * tile_rows + at;
                float* results = partial ? partial + int64_t(row) * width_ : work_.tile_results;
                alignas(64) float own_tops[Products::kStrip];
                float* tops = partial ? partial + int64_t(unit.heads) * tile_rows * width_ + row : own_tops;
                if (begin >= end) {
                    std::fill(tops, tops + count, kNothing);
                    continue;
                }
                Products::scores(work_.queries + int64_t(row) * packed_width, count, work_.keys, shape_.head_dim, begin, end, work_.scores);
                for (int r = 0; r < count; ++r) {
                    const Seen seen = seen_tokens(first + (at + r) / group_, tile, args_.plan->window);
                    tops[r] = probabilities<kScaled>(work_.scores + r * kTile, seen, begin, end, scoring_, work_.key_scales,
                                                     work_.value_scales, work_.probabilities + r * kTile,
                                                     results + int64_t(r) * width_ + packed_width);
                }
                Products::weigh(work_.probabilities, count, work_.values, shape_.head_dim, begin, end, results, width_);
                if (!partial) fold(work_.results + int64_t(row) * width_, work_.tops + row, results, tops, count, width_);
            }
        }
    }

    void gather_scales(const TileRows& rows, int head) {
        const int64_t offset = args_.kv.scale_offset + head * int64_t(sizeof(float));
        for (int t = rows.begin; t < rows.end; ++t) {
            std::memcpy(work_.key_scales + t, rows.keys[t] + offset, sizeof(float));
            std::memcpy(work_.value_scales + t, rows.values[t] + offset, sizeof(float));
        }
    }

    const AttentionArgs& args_;
    const AttentionShape& shape_;
    const int group_;
    const int width_;
    const Scoring scoring_;
    Workspace work_;
};

}  // namespace

int attention_items(const AttentionArgs& args) { return int(args.plan->begins.size()) - 1; }

void attention_item(const AttentionArgs& args, int item, Scratch& scratch) {
    const AttentionPlan& plan = *args.plan;
    const AttentionUnit* begin = plan.units.data() + plan.begins[item];
    const AttentionUnit* end = plan.units.data() + plan.begins[item + 1];
    const int group = plan.shape.heads / plan.shape.kv_heads;
    int most_rows = 0;
    for (const AttentionUnit* unit = begin; unit != end; ++unit) most_rows = std::max(most_rows, unit->heads * unit->queries * group);
    ItemWalk(args, scratch, most_rows).run(begin, end);
}

int attention_merge_items(const AttentionArgs& args) { return int(args.plan->merges.size()); }

void attention_merge_item(const AttentionArgs& args, int item, Scratch& scratch) {
    const AttentionPlan& plan = *args.plan;
    const AttentionUnit& unit = plan.merges[item];
    const int rows = unit.heads * unit.queries * (plan.shape.heads / plan.shape.kv_heads);
    const int width = result_width(plan.shape.head_dim);
    float* results = scratch.get<float>(size_t(rows) * (width + 1));
    float* tops = results + int64_t(rows) * width;
    std::fill(tops, tops + rows, kNothing);
    const int64_t tile_floats = partial_floats(plan.shape, unit);
    for (int tile = 0; tile < unit.tiles; ++tile) {
        const float* partial = plan.partials.data() + unit.partial + tile_floats * tile;
        const float* partial_tops = partial + int64_t(rows) * width;
        for (int row = 0; row < rows; row += Lanes::count) {
            fold(results + int64_t(row) * width, tops + row, partial + int64_t(row) * width, partial_tops + row,
                 std::min(Lanes::count, rows - row), width);
        }
    }
    ItemWalk::finish(args, unit, results, width);
}

}  // namespace octavo
