// Powers of two and what follows from them, on Lanes. The same polynomial in every lane, row and caller.
#pragma once

#include "lanes.h"

namespace octavo {

// 2^x = 2^floor(x) * p(x - floor(x)), with p a polynomial that is exact at 0 (so that 2^0 is 1) and minimises the greatest
// relative error on [0, 1) otherwise. x must be below 128 and no NaN. Where an ISA has no instruction that scales by powers of
// two, x is taken as at least -126, so that the result is never below 2^-126.

// The relative error stays below 8.7e-5: a twentieth of what rounding to bfloat16 adds afterwards.
inline Lanes exp2_close(Lanes x) {
#if !defined(__AVX512F__)
    x = max(x, Lanes::set(-126.0f));
#endif
    const Lanes f = x - floor(x);
    Lanes p = fma(f, Lanes::set(0.0770671964f), Lanes::set(0.227644816f));
    p = fma(p, f, Lanes::set(0.695116818f));
    p = fma(p, f, Lanes::set(1.0f));
    return scale_by_power(p, x);
}

// The relative error stays below 2e-7.
inline Lanes exp2_fine(Lanes x) {
#if !defined(__AVX512F__)
    x = max(x, Lanes::set(-126.0f));
#endif
    const Lanes f = x - floor(x);
    Lanes p = fma(f, Lanes::set(0.00186713168f), Lanes::set(0.00901702698f));
    p = fma(p, f, Lanes::set(0.0557999164f));
    p = fma(p, f, Lanes::set(0.240164444f));
    p = fma(p, f, Lanes::set(0.693151295f));
    p = fma(p, f, Lanes::set(1.0f));
    return scale_by_power(p, x);
}

constexpr float kLog2E = 1.44269504088896341f;

// tanh(x) = 1 - 2 / (e^2x + 1); the absolute error stays below 3e-7. Clamped where float32 rounds to 1 anyway.
inline Lanes tanh(Lanes x) {
    const Lanes clamped = min(max(x, Lanes::set(-10.0f)), Lanes::set(10.0f));
    const Lanes power = exp2_fine(clamped * Lanes::set(2.0f * kLog2E));
    return Lanes::set(1.0f) - Lanes::set(2.0f) / (power + Lanes::set(1.0f));
}

}  // namespace octavo
