// bf16 panels in plain C++ for the compiler to vectorise: the baseline, and what other instruction sets are compared with.
#if !defined(__AVX2__)

#include "bf16.h"
#include "panel.h"

namespace octavo {

void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out) {
    for (int r = 0; r < rows; r++) {
        const bf16* row = reinterpret_cast<const bf16*>(static_cast<const char*>(x) + size_t(r) * x_stride);
        const uint32_t* pairs = static_cast<const uint32_t*>(panel);
        float sum[kPanel] = {};
        for (int i = 0; i < k; i += 2, pairs += kPanel) {
            const float a0 = bf16_to_float(row[i]), a1 = bf16_to_float(row[i + 1]);
            for (int c = 0; c < kPanel; c++) {
                sum[c] += a0 * bits_to_float(pairs[c] << 16);
                sum[c] += a1 * bits_to_float(pairs[c] & 0xffff0000u);
            }
        }
        for (int c = 0; c < kPanel; c++) out[r * kPanel + c] = sum[c];
    }
}

}  // namespace octavo

#endif
