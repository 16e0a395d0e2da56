// Prints how many exponentials a second one thread computes on registers: those of attention's softmax.
#include <chrono>
#include <cstdio>

#include "exp.h"

using namespace octavo;

int main() {
    constexpr int kVectors = 8;
    constexpr long kRounds = 4'000'000;
    Lanes x[kVectors], sum[kVectors];
    for (int i = 0; i < kVectors; ++i) {
        x[i] = Lanes::set(-0.1f * float(i + 1));
        sum[i] = Lanes::set(0.0f);
    }
    const auto begin = std::chrono::steady_clock::now();
    for (long round = 0; round < kRounds; ++round) {
        for (int i = 0; i < kVectors; ++i) {
            asm volatile("" : "+m"(x[i]));  // a new value each time, as far as the compiler knows
            sum[i] = sum[i] + exp2_close(x[i]);
        }
    }
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (int i = 0; i < kVectors; ++i) asm volatile("" : : "m"(sum[i]));
    std::printf("%g\n", double(kRounds) * kVectors * Lanes::count / spent);
}
