// Products of a few rows of activations and one panel of 32 packed columns: the innermost part, one implementation for each ISA.
#pragma once

#include <cstddef>

#include "weight.h"

namespace octavo {

// The most rows that one call takes; larger calls reuse a panel's registers better.
int panel_rows(Kind kind);

// Floats of working memory that a call needs beside its output.
size_t panel_scratch(Kind kind, int k);

// out[r][c] = sum over k of x[r][k] * panel[k][c], for r < rows <= panel_rows(kind); float32 [rows][32], 64-byte aligned.
void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out, float* scratch);
void quantized_panel(Kind kind, const void* panel, int k, const void* x, size_t x_stride, int rows, float* out);

}  // namespace octavo
