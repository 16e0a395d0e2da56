// Row: a run of consecutive tokens of one sequence in this step's batch.
#pragma once

#include <cstdint>

namespace octavo {

struct Row {
    int32_t slot;    // the sequence
    int32_t start;   // position of the first token in its sequence; everything before it is in the KV cache already
    int32_t length;  // tokens
    int32_t first;   // index of the first token among the step's tokens
};

}  // namespace octavo
