// KvView: where the keys and values of every sequence lie in one layer. Every layout is read and written through it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo {

enum class KvKind : int32_t {
    kBf16 = 0,
    kInt8 = 1,  // with one float32 scale per token and kv head: value = int8 * scale
};

struct KvView {
    char* keys;             // token index 0 of the layer
    char* values;           // likewise
    int64_t token_stride;   // bytes from a token to the next
    int64_t head_stride;    // bytes from a kv head to the next within a token
    int64_t scale_offset;   // int8: bytes from a token to its scales, float32 [kv_heads]
    const int32_t* table;   // [slots][width]: the token index at which run i of a slot's sequence begins
    const int32_t* run;     // [slots]: tokens in a run
    int32_t width;
    KvKind kind;

    // The token index of a position of the sequence in `slot`.
    int64_t token_index(int slot, int position) const {
        const int length = run[slot];
        return table[static_cast<int64_t>(slot) * width + position / length] + static_cast<int64_t>(position % length);
    }

    // Calls visit(token index, position, tokens) for each run that positions [begin, end) touch, in order: one division in all.
    template <class Visit>
    void each_run(int slot, int begin, int end, Visit&& visit) const {
        const int length = run[slot];
        const int32_t* entry = table + static_cast<int64_t>(slot) * width + begin / length;
        int inside = begin % length;
        for (int position = begin; position < end;) {
            const int tokens = std::min(length - inside, end - position);
            visit(static_cast<int64_t>(*entry) + inside, position, tokens);
            position += tokens;
            inside = 0;
            ++entry;
        }
    }
};

}  // namespace octavo
