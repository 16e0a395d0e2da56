// The C border of RoPE and attention: one whole operation a call, on the calling thread.
#include "attention.h"
#include "rope.h"

#define OCTAVO_API extern "C" __attribute__((visibility("default")))

using namespace octavo;

OCTAVO_API void octavo_rope_turns(const double* frequencies, int rotary_dim, int positions, float* turns) {
    rope_turns(frequencies, rotary_dim, positions, turns);
}

OCTAVO_API void octavo_rope(const RopeArgs* args) {
    Scratch scratch;
    for (int item = 0; item < rope_items(*args); ++item) rope_item(*args, item, scratch);
}

OCTAVO_API const char* octavo_attention_error(const AttentionShape* shape) { return attention_error(*shape); }

// args->plan is not read: the plan is made here, for so many workers.
OCTAVO_API void octavo_attention(const AttentionArgs* args, const AttentionShape* shape, int row_count, int window, int workers) {
    AttentionPlan plan;
    attention_plan(plan, *shape, args->rows, row_count, window, workers);
    AttentionArgs own = *args;
    own.plan = &plan;
    Scratch scratch;
    for (int item = 0; item < attention_items(own); ++item) attention_item(own, item, scratch);
    for (int item = 0; item < attention_merge_items(own); ++item) attention_merge_item(own, item, scratch);
}
