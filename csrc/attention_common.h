// What the products of every ISA share: the sizes of a tile, where its rows are, prefetching.
#pragma once

#include <cstdint>
#include <type_traits>

namespace octavo {

constexpr int kTile = 128;      // tokens of a tile; tiles begin at multiples of it
constexpr int kNearRows = 16;   // rows that direct reading brings into the L1 cache ahead of itself
constexpr int kTokenStep = 32;  // products work on whole steps of this many tokens

#define OCTAVO_INLINE __attribute__((always_inline)) inline

// Inlined by force: as functions of their own they would count as functions without effect, and GCC leaves out calls of those.
OCTAVO_INLINE void prefetch_near(const char* address) { __builtin_prefetch(address, 0, 3); }
OCTAVO_INLINE void prefetch_far(const char* address) { __builtin_prefetch(address, 0, 2); }

// A head's keys, or values, of a tile's tokens [begin, end): those of token begin + t are at rows[t] + offset. begin and end are
// multiples of kTokenStep.
struct HeadRows {
    const char* const* rows;
    int64_t offset;
    int begin, end;
};

// Keys, or values, of all heads of a unit: as above, head h head_stride * h further on. int8 rows have the heads' scales at
// rows[t] + scale_offset. What is read next follows in `rows`: end - begin rows of it.
struct UnitRows {
    const char* const* rows;
    int64_t offset, head_stride, scale_offset;
    int heads;
    int begin, end;
};

// Brings the rows of the next tile into the cache, a few lines at a time, while this one is computed. That makes the speed of
// reading independent of where the rows lie.
class Prefetcher {
public:
    Prefetcher() = default;  // of nothing
    Prefetcher(const char* const* rows, int count, int64_t offset, int lines)
        : row_(rows), end_(rows + count), offset_(offset), lines_(lines) {}

    void step(int lines) {
        for (; lines > 0 && row_ != end_; --lines) {
            prefetch_far(*row_ + offset_ + line_ * 64);
            if (++line_ == lines_) {
                line_ = 0;
                ++row_;
            }
        }
    }

private:
    const char* const* row_ = nullptr;
    const char* const* end_ = nullptr;
    int64_t offset_ = 0;
    int lines_ = 0;
    int line_ = 0;
};

// Calls body with `count` as a constant: so that what is computed together stays in registers.
template <int low, int high, class Body>
inline void with_rows(int count, Body&& body) {
    if constexpr (low == high) {
        body(std::integral_constant<int, low>{});
    } else {
        if (count == low) return body(std::integral_constant<int, low>{});
        with_rows<low + 1, high>(count, body);
    }
}

}  // namespace octavo
