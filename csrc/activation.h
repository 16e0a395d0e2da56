// Activation functions, written so that loops over them vectorise and every ISA computes the same bits.
#pragma once

#include <cstdint>

#include "bf16.h"

namespace octavo {

// e^x for x <= 0 up to the rounding of its last step: relative error below 2e-7; 0 below -87.3; NaN for NaN.
// 2^n * p(r) with n = round(x / ln 2), r = x - n ln 2 in two parts, p a Taylor polynomial of degree 6 (|r| <= 0.347: 2e-8).
inline float exp_nonpositive(float x) {
    const float clamped = x < -87.3f ? -87.3f : x;
    const float shifted = clamped * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    float r = clamped - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float power = bits_to_float((float_to_bits(shifted) - 0x4b400000u + 127u) << 23);
    const float result = p * power;
    return x < -87.3f ? 0.0f : (x != x ? x : result);
}

// 1 / (1 + e^-x), from e^-|x| on both sides so that nothing overflows.
inline float sigmoid(float x) {
    const float e = exp_nonpositive(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

inline float silu(float x) { return x * sigmoid(x); }

// tanh x = sign(x) (1 - e) / (1 + e), e = e^-2|x|. Absolute error below 2e-7: enough for what is multiplied or capped with it.
inline float fast_tanh(float x) {
    const float magnitude = x < 0.0f ? -x : x;
    const float e = exp_nonpositive(-2.0f * magnitude);
    const float t = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -t : t;
}

// GELU in its tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x sigmoid of twice that argument.
inline float gelu_tanh(float x) {
    const float inner = 0.797884561f * (x + 0.044715f * x * x * x);
    return x * sigmoid(2.0f * inner);
}

}  // namespace octavo
