// Sampling: one token from a row of logits. The definition, step by step, is that of octavo/runner/sampler.py, and the random numbers
// are the same: equal logits give equal tokens, up to the rounding of a probability at which a draw or a threshold falls.
#pragma once

#include <cstdint>

#include "scratch.h"

namespace octavo {

// How a sequence samples, and its place in its random stream.
struct Sampling {
    float temperature;  // 0: greedy
    double top_p;       // 1: off
    int32_t top_k;      // 0: off
    uint64_t seed;
    uint64_t drawn;     // tokens drawn before
};

inline bool draws(const Sampling& sampling) { return sampling.temperature > 0.0f && sampling.top_k != 1; }

// A number in [0, 1): (mix(mix(seed) + (drawn + 1) * 0x9E3779B97F4A7C15) >> 11) * 2^-53, where mix is SplitMix64's output function.
double uniform(uint64_t seed, uint64_t drawn);

// The token of a row that draws.
int32_t draw(const float* logits, int vocabulary, const Sampling& sampling, Scratch& scratch);

}  // namespace octavo
