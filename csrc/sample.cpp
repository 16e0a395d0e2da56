#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "activation.h"

namespace octavo {

namespace {

uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

constexpr int kBucketBits = 12;
constexpr int kBuckets = 1 << kBucketBits;

// Unsigned integers that order like the floats.
uint32_t order_of(float value) {
    const uint32_t bits = float_to_bits(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

int bucket_of(float value) { return int(order_of(value) >> (32 - kBucketBits)); }

// The values of one bucket, largest first.
int sorted_bucket(const float* values, int count, int bucket, float* out) {
    int found = 0;
    for (int i = 0; i < count; i++)
        if (bucket_of(values[i]) == bucket) out[found++] = values[i];
    std::sort(out, out + found, [](float a, float b) { return a > b; });
    return found;
}

// The k-th largest value; 1 <= k <= count. Only the bucket that it falls into is sorted.
float kth_largest(const float* values, int count, int k, float* work) {
    int32_t counts[kBuckets] = {};
    for (int i = 0; i < count; i++) counts[bucket_of(values[i])]++;
    int bucket = kBuckets - 1;
    for (; counts[bucket] < k; bucket--) k -= counts[bucket];
    sorted_bucket(values, count, bucket, work);
    return work[k - 1];
}

// The last probability that is needed, from the largest on, for their sum to reach top_p; 0 where all are.
float last_needed(const float* probabilities, int count, double top_p, float* work) {
    double sums[kBuckets] = {};
    for (int i = 0; i < count; i++) sums[bucket_of(probabilities[i])] += double(probabilities[i]);
    double sum = 0.0;
    int bucket = kBuckets - 1;
    for (; bucket >= 0 && sum + sums[bucket] < top_p; bucket--) sum += sums[bucket];
    if (bucket < 0) return 0.0f;
    const int found = sorted_bucket(probabilities, count, bucket, work);
    for (int i = 0; i < found; i++) {
        sum += double(work[i]);
        if (sum >= top_p) return work[i];
    }
    return found > 0 ? work[found - 1] : 0.0f;  // where the bucket's own sum was rounded differently
}

}  // namespace

double uniform(uint64_t seed, uint64_t drawn) {
    const uint64_t bits = mix(mix(seed) + (drawn + 1) * 0x9E3779B97F4A7C15ull);
    return double(bits >> 11) * 0x1p-53;
}

int32_t draw(const float* logits, int vocabulary, const Sampling& sampling, Scratch& scratch) {
    float* values = scratch.get<float>(size_t(vocabulary) * 2);
    float* work = values + vocabulary;
    float largest = -INFINITY;
    for (int i = 0; i < vocabulary; i++) largest = logits[i] > largest ? logits[i] : largest;
    // The largest is taken off before dividing, so that a temperature close to 0 gives a sharp distribution and no overflow.
    for (int i = 0; i < vocabulary; i++) values[i] = (logits[i] - largest) / sampling.temperature;
    if (sampling.top_k > 0 && sampling.top_k < vocabulary) {
        const float threshold = kth_largest(values, vocabulary, sampling.top_k, work);
        for (int i = 0; i < vocabulary; i++) values[i] = values[i] < threshold ? -INFINITY : values[i];
    }
    for (int i = 0; i < vocabulary; i++) values[i] = exp_nonpositive(values[i]);
    double total = 0.0;
    for (int i = 0; i < vocabulary; i++) total += double(values[i]);
    const float norm = float(1.0 / total);
    for (int i = 0; i < vocabulary; i++) values[i] *= norm;
    if (sampling.top_p < 1.0) {
        const float threshold = last_needed(values, vocabulary, sampling.top_p, work);
        for (int i = 0; i < vocabulary; i++) values[i] = values[i] < threshold ? 0.0f : values[i];
    }
    total = 0.0;
    for (int i = 0; i < vocabulary; i++) total += double(values[i]);
    const double wanted = total * uniform(sampling.seed, sampling.drawn);
    double sum = 0.0;
    int last_kept = 0;  // where rounding lifts `wanted` to the total
    for (int i = 0; i < vocabulary; i++) {
        sum += double(values[i]);
        if (sum > wanted) return i;
        if (values[i] > 0.0f) last_kept = i;
    }
    return last_kept;
}

}  // namespace octavo
