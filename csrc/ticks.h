// Ticks: the cheapest clock of the CPU, the same on all cores. Only ratios of ticks are used, so their rate need not be known.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#elif !defined(__aarch64__)
#include <chrono>
#endif

namespace octavo {

inline uint64_t ticks() {
#if defined(__x86_64__) || defined(__i386__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return uint64_t(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Tells the core that this is a loop that waits.
inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace octavo
