#include "panel.h"

#include "fixed_point.h"

namespace octavo {

#if defined(__AMX_BF16__) || defined(OCTAVO_EMULATE_AMX)
constexpr int kBf16Rows = 32, kQuantizedRows = 14;
#elif defined(OCTAVO_FIXED_POINT)
constexpr int kBf16Rows = 7, kQuantizedRows = 14;
#elif defined(__AVX512F__)
constexpr int kBf16Rows = 14, kQuantizedRows = 14;
#elif defined(__AVX2__)
constexpr int kBf16Rows = 6, kQuantizedRows = 4;
#else
constexpr int kBf16Rows = 4, kQuantizedRows = 4;
#endif

int panel_rows(Kind kind) { return kind == Kind::kBf16 ? kBf16Rows : kQuantizedRows; }

#if !defined(__AVX2__) || defined(__AVX512BF16__) || defined(OCTAVO_EMULATE_AMX)  // else beside the product that reads such rows
size_t bf16_prepared_bytes(int) { return 0; }
void bf16_prepare(const void*, int, void*) {}
#endif

}  // namespace octavo
