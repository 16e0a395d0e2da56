// Attention: the walk over units and tiles. See attention.h for how the work is cut, attention_tile.h for one tile's mathematics.
#include "attention.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention_products.h"
#include "attention_tile.h"

namespace octavo {
namespace {

using Packed = Products::Packed;

// What tokens read that are not there: no kernel ever touches what lies behind a sequence's last token.
alignas(64) const char kZeros[kZeroBytes] = {};

// Where the rows of one tile are: the keys of its tokens [begin, end), then their values, then as many rows of what is read next,
// to be prefetched. Tokens that nobody sees are zeros: what lies behind a sequence's last token is never touched.
struct TileRows {
    const char* rows[3 * kTile];
    int begin, end;  // multiples of kTokenStep

    int tokens() const { return end - begin; }
    const char* const* keys() const { return rows; }
    const char* const* values() const { return rows + tokens(); }

    // Tokens [low, high) of a tile are seen.
    void find(const KvView& kv, int slot, int tile, int low, int high) {
        const int base = tile * kTile;
        begin = low / kTokenStep * kTokenStep;
        end = (high + kTokenStep - 1) / kTokenStep * kTokenStep;
        const char** key_rows = rows;
        const char** value_rows = rows + tokens();
        kv.each_run(slot, base + begin, base + high, [&](int64_t index, int, int tokens) {
            const char* key = kv.keys + index * kv.token_stride;
            const char* value = kv.values + index * kv.token_stride;
            for (int i = 0; i < tokens; ++i) {
                key_rows[i] = key + i * kv.token_stride;
                value_rows[i] = value + i * kv.token_stride;
            }
            key_rows += tokens;
            value_rows += tokens;
        });
        for (int i = high; i < end; ++i) *key_rows++ = *value_rows++ = kZeros;
    }

    // `shift`: bytes from this tile's first head to the next one's.
    void followed_by(const TileRows* next, int64_t shift) {
        const char** more = rows + 2 * tokens();
        const int count = next ? std::min(tokens(), next->tokens()) : 0;
        for (int i = 0; i < count; ++i) more[i] = next->rows[i] + shift;
        for (int i = count; i < tokens(); ++i) more[i] = kZeros;
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

// What the largest unit of an item needs.
struct Most {
    int rows = 0;  // of all heads
    int heads = 0;
    int together = Products::kStrip;  // rows whose scores are in memory at once

    void include(const AttentionUnit& unit, int group) {
        const int tile_rows = unit.queries * group;
        rows = std::max(rows, unit.heads * tile_rows);
        heads = std::max(heads, unit.heads);
        if (tile_rows <= Products::kDirectRows) together = std::max(together, unit.heads * tile_rows);
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
    float* tile_tops;
    float* key_scales;
    float* value_scales;

    Workspace(Scratch& scratch, int head_dim, const Most& most) {
        const size_t bytes = layout(0, head_dim, most);
        layout(reinterpret_cast<uintptr_t>(scratch.get<char>(bytes)), head_dim, most);
    }

private:
    // Places everything from `memory` on; returns the bytes that takes.
    size_t layout(uintptr_t memory, int head_dim, const Most& most) {
        const size_t width = Products::padded(head_dim);
        const size_t all_rows = size_t(most.rows) + std::max(Products::kStrip, Lanes::count);  // some are read in groups
        size_t bytes = 0;
        const auto place = [&](auto& pointer, size_t count) {
            using Value = std::remove_reference_t<decltype(*pointer)>;
            pointer = reinterpret_cast<Value*>(memory + bytes);
            bytes += (count * sizeof(Value) + 63) / 64 * 64;
        };
        place(rows[0], 1);
        place(rows[1], 1);
        place(keys, kTile * width);
        place(values, kTile * width);
        place(queries, all_rows * width);
        place(probabilities, size_t(most.together) * kTile);
        place(scores, size_t(most.together) * kTile);
        place(tile_results, size_t(most.together) * result_width(head_dim));
        place(results, all_rows * result_width(head_dim));
        place(tops, all_rows);
        place(tile_tops, all_rows);
        place(key_scales, size_t(most.heads) * kTile);
        place(value_scales, size_t(most.heads) * kTile);
        return bytes;
    }
};

class ItemWalk {
public:
    ItemWalk(const AttentionArgs& args, Scratch& scratch, const Most& most)
        : args_(args),
          shape_(args.plan->shape),
          group_(shape_.heads / shape_.kv_heads),
          width_(result_width(shape_.head_dim)),
          scoring_(scoring(args.scale, args.softcap)),
          work_(scratch, shape_.head_dim, most) {}

    void run(const AttentionUnit* begin, const AttentionUnit* end) {
        Cursor now{begin, end}, next{begin, end};
        find(now, work_.rows[0]);
        for (int turn = 0; !now.done(); turn ^= 1) {
            TileRows& rows = *work_.rows[turn];
            const TileRows* ahead = nullptr;
            next.advance();
            if (!next.done()) {
                find(next, work_.rows[turn ^ 1]);
                ahead = work_.rows[turn ^ 1];
            }
            rows.followed_by(ahead, ahead ? (next.unit->head - now.unit->head) * args_.kv.head_stride : 0);
            const AttentionUnit& unit = *now.unit;
            if (now.tile == 0) open(unit);
            const Ahead coming = ahead ? Ahead{ahead, next.unit} : Ahead{};
            if (args_.kv.kind == KvKind::kBf16) {
                compute<KvKind::kBf16>(unit, now.tile, rows, coming);
            } else {
                compute<KvKind::kInt8>(unit, now.tile, rows, coming);
            }
            if (now.tile + 1 == unit.tiles && unit.partial < 0) finish(args_, unit, work_.results, width_);
            now = next;
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
                    bf16* head = out + query * args.ldo + (h * group + g) * shape.head_dim;
                    Products::finish(results, 1.0f / total, shape.head_dim, head);
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

    // The tile after the one that is computed, to be prefetched.
    struct Ahead {
        const TileRows* rows = nullptr;
        const AttentionUnit* unit = nullptr;
    };

    // Where a tile's results go: to the partial results, or to a place from which they are folded.
    struct Target {
        float* results;
        float* tops;
    };

    Target target(const AttentionUnit& unit, int tile_of_unit, int row) {
        if (unit.partial < 0) return {work_.tile_results, work_.tile_tops};
        float* partial = args_.plan->partials.data() + unit.partial + partial_floats(shape_, unit) * tile_of_unit;
        return {partial + int64_t(row) * width_, partial + int64_t(unit.heads) * unit.queries * group_ * width_ + row};
    }

    template <KvKind kind>
    void compute(const AttentionUnit& unit, int tile_of_unit, const TileRows& rows, const Ahead& ahead) {
        if constexpr (Products::kDirectRows > 0) {
            if (unit.queries * group_ <= Products::kDirectRows) return compute_direct<kind, Products>(unit, tile_of_unit, rows);
        }
        if (kind == KvKind::kInt8) {
            gather_scales(unit, rows, rows.keys(), work_.key_scales);
            gather_scales(unit, rows, rows.values(), work_.value_scales);
        }
        compute_packed<kind>(unit, tile_of_unit, rows, ahead);
    }

    // Many rows: keys and values are packed, head by head, and strips of rows read the packed tile.
    template <KvKind kind>
    void compute_packed(const AttentionUnit& unit, int tile_of_unit, const TileRows& rows, const Ahead& ahead) {
        const int tile = unit.tile + tile_of_unit, tile_rows = unit.queries * group_;
        const int first = args_.rows[unit.row].start + unit.query;
        const int packed_width = Products::padded(shape_.head_dim);
        Prefetcher next;
        if (ahead.rows) {
            const int lines = int((ahead.unit->heads * args_.kv.head_stride + 63) / 64);
            next = Prefetcher(ahead.rows->rows, 2 * ahead.rows->tokens(), ahead.unit->head * args_.kv.head_stride, lines);
        }
        const int window = args_.plan->window;
        for (int h = 0; h < unit.heads; ++h) {
            const int64_t offset = (unit.head + h) * args_.kv.head_stride;
            Products::pack_keys<kind>({rows.keys(), offset, rows.begin, rows.end}, shape_.head_dim, work_.keys, next);
            Products::pack_values<kind>({rows.values(), offset, rows.begin, rows.end}, shape_.head_dim, work_.values, next);
            for (int at = 0; at < tile_rows; at += Products::kStrip) {
                const int count = std::min(Products::kStrip, tile_rows - at), row = h * tile_rows + at;
                const Target to = target(unit, tile_of_unit, row);
                const int low = seen_tokens(first + at / group_, tile, window).low;
                const int high = seen_tokens(first + (at + count - 1) / group_, tile, window).high;
                const int begin = low / kTokenStep * kTokenStep, end = (high + kTokenStep - 1) / kTokenStep * kTokenStep;
                if (begin >= end) {
                    std::fill(to.tops, to.tops + count, kNothing);
                    continue;
                }
                const Packed* queries = work_.queries + int64_t(row) * packed_width;
                Products::scores(queries, count, work_.keys, shape_.head_dim, begin, end, work_.scores);
                weigh_scores<kind>(first, at, count, tile, h, 0, begin, end, to);
                Products::weigh(work_.probabilities, count, work_.values, shape_.head_dim, begin, end, to.results, width_);
                if (unit.partial < 0) {
                    fold(work_.results + int64_t(row) * width_, work_.tops + row, to.results, to.tops, count, width_);
                }
            }
        }
    }

    // A few rows: keys and values are read where they lie, all heads together. Only some ISAs' products can.
    template <KvKind kind, class Direct>
    void compute_direct(const AttentionUnit& unit, int tile_of_unit, const TileRows& rows) {
        const int tile = unit.tile + tile_of_unit, tile_rows = unit.queries * group_;
        const int first = args_.rows[unit.row].start + unit.query;
        const Target to = target(unit, tile_of_unit, 0);
        UnitRows part{rows.keys(), unit.head * args_.kv.head_stride, args_.kv.head_stride, scale_offset(unit), unit.heads,
                      rows.begin, rows.end};
        if (kind == KvKind::kInt8) gather_scales(unit, rows, rows.keys(), work_.key_scales);
        Direct::template scores_direct<kind>(work_.queries, tile_rows, part, shape_.head_dim, work_.scores);
        if (kind == KvKind::kInt8) gather_scales(unit, rows, rows.values(), work_.value_scales);
        for (int h = 0; h < unit.heads; ++h) {
            weigh_scores<kind>(first, 0, tile_rows, tile, h, h * tile_rows, rows.begin, rows.end, to);
        }
        part.rows = rows.values();
        Direct::template weigh_direct<kind>(work_.probabilities, tile_rows, part, shape_.head_dim, to.results, width_);
        if (unit.partial >= 0) return;
        fold(work_.results, work_.tops, to.results, to.tops, unit.heads * tile_rows, width_);
    }

    // Probabilities of `count` rows of a head, the `at`-th and the next; row 0 is of the query at `first`. Their scores and
    // results begin at row `to_row` of the strip. First the largest exponents of all, then all probabilities: so that the long way to the
    // one does not hold up the other.
    template <KvKind kind>
    void weigh_scores(int first, int at, int count, int tile, int head, int to_row, int begin, int end, const Target& to) {
        constexpr bool kScaled = kind == KvKind::kInt8;
        const float* key_scales = work_.key_scales + head * kTile;
        const float* value_scales = work_.value_scales + head * kTile;
        Seen seen[std::max(Products::kStrip, Products::kDirectRows)];
        int query = at / group_, left = group_ - at % group_;
        for (int r = 0; r < count; ++r) {
            seen[r] = seen_tokens(first + query, tile, args_.plan->window);
            if (--left == 0) {
                left = group_;
                ++query;
            }
            float* scores = work_.scores + (to_row + r) * kTile;
            to.tops[to_row + r] = largest_exponent<kScaled>(scores, seen[r], begin, end, scoring_, key_scales);
        }
        for (int r = 0; r < count; ++r) {
            const int row = to_row + r;
            float* sum = to.results + int64_t(row) * width_ + Products::padded(shape_.head_dim);
            probabilities<kScaled>(work_.scores + row * kTile, seen[r], begin, end, scoring_, to.tops[row], value_scales,
                                   work_.probabilities + row * kTile, sum);
        }
    }

    // From a token's first byte to the scale of a unit's first head.
    int64_t scale_offset(const AttentionUnit& unit) const {
        return args_.kv.scale_offset + unit.head * int64_t(sizeof(float));
    }

    // Scales of a tile's keys or values: [head of the unit][token].
    void gather_scales(const AttentionUnit& unit, const TileRows& rows, const char* const* from, float* scales) {
        for (int t = 0; t < rows.tokens(); ++t) {
            const char* token = from[t] + scale_offset(unit);
            for (int h = 0; h < unit.heads; ++h) {
                std::memcpy(scales + h * kTile + rows.begin + t, token + h * sizeof(float), sizeof(float));
            }
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
    Most most;
    for (const AttentionUnit* unit = begin; unit != end; ++unit) most.include(*unit, group);
    const Products::Setup setup;
    ItemWalk(args, scratch, most).run(begin, end);
}

int attention_merge_items(const AttentionArgs& args) { return int(args.plan->merges.size()); }

void attention_merge_item(const AttentionArgs& args, int item, Scratch& scratch) {
    const AttentionPlan& plan = *args.plan;
    const AttentionUnit& unit = plan.merges[item];
    const int rows = unit.heads * unit.queries * (plan.shape.heads / plan.shape.kv_heads);
    const int width = result_width(plan.shape.head_dim);
    float* results = scratch.get<float>(size_t(rows) * (width + 1) + Lanes::count);
    float* tops = results + int64_t(rows) * width;
    std::fill(tops, tops + rows, kNothing);
    const int64_t tile_floats = partial_floats(plan.shape, unit);
    for (int tile = 0; tile < unit.tiles; ++tile) {
        const float* partial = plan.partials.data() + unit.partial + tile_floats * tile;
        fold(results, tops, partial, partial + int64_t(rows) * width, rows, width);
    }
    ItemWalk::finish(args, unit, results, width);
}

}  // namespace octavo
