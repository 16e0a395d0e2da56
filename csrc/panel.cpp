#include "panel.h"

namespace octavo {

#if defined(__AMX_BF16__) || defined(OCTAVO_EMULATE_AMX)
constexpr int kBf16Rows = 32, kQuantizedRows = 14;
#elif defined(__AVX512F__)
constexpr int kBf16Rows = 14, kQuantizedRows = 14;
#elif defined(__AVX2__)
constexpr int kBf16Rows = 6, kQuantizedRows = 4;
#else
constexpr int kBf16Rows = 4, kQuantizedRows = 4;
#endif

int panel_rows(Kind kind) { return kind == Kind::kBf16 ? kBf16Rows : kQuantizedRows; }

size_t panel_scratch(Kind kind, int k) {
#if defined(__AVX2__) && !defined(__AVX512BF16__) && !defined(OCTAVO_EMULATE_AMX)  // rows widened to float32
    if (kind == Kind::kBf16) return size_t(k) * kBf16Rows;
#endif
    (void)kind, (void)k;
    return 0;
}

}  // namespace octavo
