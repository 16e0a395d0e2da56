// Sixteen-bit floats, one value at a time. Vector code converts with its own instructions and agrees bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

using bf16 = uint16_t;  // the upper half of a float32
using f16 = uint16_t;   // IEEE binary16

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float bf16_to_float(bf16 value) { return bits_to_float(uint32_t(value) << 16); }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN. Without a branch, so that loops over it vectorise.
inline bf16 float_to_bf16(float value) {
    const uint32_t bits = float_to_bits(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quieted = (bits >> 16) | 0x40;
    return bf16((bits & 0x7fffffff) > 0x7f800000 ? quieted : rounded);
}

// Exact. Scaling by 2^112 moves the exponent's bias and normalises subnormals in one multiplication.
inline float f16_to_float(f16 value) {
    const uint32_t sign = uint32_t(value & 0x8000) << 16;
    const uint32_t magnitude = uint32_t(value & 0x7fff) << 13;
    const uint32_t finite = float_to_bits(bits_to_float(magnitude) * bits_to_float(uint32_t(127 + 112) << 23));
    const uint32_t special = magnitude | 0x7f800000;  // infinity and NaN
    return bits_to_float(sign | ((value & 0x7c00) == 0x7c00 ? special : finite));
}

}  // namespace octavo
