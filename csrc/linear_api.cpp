// The C border of linear layers: what Python calls to pack weights and what tests and benchmarks call.
#include "linear.h"
#include "quantize.h"
#include "weight.h"

#define OCTAVO_API extern "C" __attribute__((visibility("default")))

using namespace octavo;

OCTAVO_API size_t octavo_weight_bytes(const Weight* weight) { return weight_bytes(*weight); }
OCTAVO_API int octavo_weight_panels(const Weight* weight) { return weight_panels(*weight); }
OCTAVO_API size_t octavo_linear_stride(int k) { return linear_stride(k); }

OCTAVO_API const char* octavo_pack_error(const PackArgs* args) { return pack_error(*args); }
OCTAVO_API int octavo_pack_items(const PackArgs* args) { return pack_items(*args); }
OCTAVO_API void octavo_pack_range(const PackArgs* args, int begin, int end) {
    Scratch scratch;
    for (int item = begin; item < end; item++) pack_item(*args, item, scratch);
}
OCTAVO_API void octavo_pack_bias(const Weight* weight, const float* bias, float* out) { pack_bias(*weight, bias, out); }
OCTAVO_API void octavo_unpack_column(const Weight* weight, int column, float* out) { unpack_column(*weight, column, out); }

OCTAVO_API void octavo_quantize(const QuantizeArgs* args) {
    Scratch scratch;
    for (int item = 0; item < quantize_items(*args); item++) quantize_item(*args, item, scratch);
}

OCTAVO_API const char* octavo_linear_error(const LinearArgs* args) { return linear_error(*args); }
OCTAVO_API size_t octavo_linear_prepared_stride(const Weight* weight) { return linear_prepared_stride(*weight); }
OCTAVO_API void octavo_linear_prepare(const LinearArgs* args) {
    Scratch scratch;
    for (int item = linear_prepare_items(*args); item-- > 0;) linear_prepare_item(*args, item, scratch);
}
OCTAVO_API int octavo_linear_items(const LinearArgs* args) { return linear_items(*args); }
OCTAVO_API void octavo_linear_range(const LinearArgs* args, int begin, int end) {
    Scratch scratch;
    for (int item = begin; item < end; item++) linear_item(*args, item, scratch);
}
OCTAVO_API void octavo_linear_argmax(const LinearArgs* args, int32_t* columns) { linear_argmax(*args, columns); }
