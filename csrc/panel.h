// Products of a few rows of activations and one panel of 32 packed columns: the innermost part, one implementation for each ISA.
#pragma once

#include <cstddef>

#include "weight.h"

namespace octavo {

// The most rows that one call takes; larger calls reuse a panel's registers better.
int panel_rows(Kind kind);

// Where an ISA has no product of bf16, rows are converted once for all panels. Bytes of such a row; 0 where rows are read as they are.
size_t bf16_prepared_bytes(int k);
void bf16_prepare(const void* x, int k, void* prepared);  // x: [k] bf16; prepared: 64-byte aligned

// out[r][c] = sum over k of x[r][k] * panel[k][c], for r < rows <= panel_rows(kind); float32 [rows][32], 64-byte aligned.
void bf16_panel(const void* panel, int k, const void* x, size_t x_stride, int rows, float* out);  // x: prepared, or bf16
void quantized_panel(Kind kind, const void* panel, int k, const void* x, size_t x_stride, int rows, float* out);

}  // namespace octavo
