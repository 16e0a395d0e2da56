// The two products of attention over one tile of tokens, and the packed forms of queries, keys, values and probabilities that
// they read: one variant per ISA, all with the same members; the rest of attention is written once, on `Products`.
//
// Every score is one chain of additions over the head's dimensions, every output one chain over the tile's tokens, whatever the
// number of rows. Callers may leave out tokens at either end of a tile: their probabilities are zero and would add nothing.
#pragma once

#include "amx.h"

#if defined(OCTAVO_AMX)

#include "attention_products_amx.h"
namespace octavo {
using Products = AmxProducts;
}

#elif defined(__AVX512F__) && !defined(__AVX512BF16__)

#include "attention_products_widened.h"
namespace octavo {
using Products = WidenedProducts;
}

#elif defined(__AVX512F__)

#include "attention_products_bf16.h"
namespace octavo {
using Products = Bf16Products;
}

#else

#include "attention_products_float.h"
namespace octavo {
using Products = FloatProducts;
}

#endif
