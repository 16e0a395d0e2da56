// Rates of packed linear layers over a whole model's matrices, beside the two limits that hold for them: reading the same memory, and
// the ISA's product instruction on registers alone. Built and run by linear.py; one line of JSON for each rate.
//
//   linear KIND ROWS,ROWS,... THREADS SECONDS SHAPE...    SHAPE: COUNTxNxK; COUNTxNxKg: gated; COUNTxNxKh: argmax
//
// Layers, reading and the instruction take turns, a few milliseconds each, and go on through the model where they left off, so that
// weights come from memory. A turn counts if every thread had its CPU to itself; the time is that of the slowest thread.
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "linear.h"

using namespace octavo;

namespace {

constexpr double kTurnSeconds = 2.5e-3;  // shorter than a scheduler's slice

double seconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

std::vector<int> cpus() {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> found;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    return found;
}

// Seconds from the first thread's start to the last one's end, each pinned to a CPU of its own; negative if somebody else had one of
// the CPUs meanwhile.
double together(int threads, const std::function<void(int)>& work) {
    static const std::vector<int> places = cpus();
    std::vector<double> start(static_cast<size_t>(threads)), stop(start), cpu(start);
    std::vector<std::thread> pool;
    std::atomic<int> ready{0};
    for (int t = 0; t < threads; t++)
        pool.emplace_back([&, t] {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(places[size_t(t) % places.size()], &one);
            sched_setaffinity(0, sizeof one, &one);
            ready++;
            while (ready < threads) std::this_thread::yield();
            const double used = seconds(CLOCK_THREAD_CPUTIME_ID);
            start[size_t(t)] = seconds(CLOCK_MONOTONIC);
            work(t);
            stop[size_t(t)] = seconds(CLOCK_MONOTONIC);
            cpu[size_t(t)] = seconds(CLOCK_THREAD_CPUTIME_ID) - used;
        });
    for (std::thread& thread : pool) thread.join();
    const double whole = *std::max_element(stop.begin(), stop.end()) - *std::min_element(start.begin(), start.end());
    const bool alone = *std::min_element(cpu.begin(), cpu.end()) > 0.9 * whole;
    return alone ? whole : -whole;
}

char* allocate(size_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) std::exit(1);
    if (!std::getenv("OCTAVO_BENCH_SMALL_PAGES")) madvise(data, bytes, MADV_HUGEPAGE);
    return static_cast<char*>(data);
}

std::atomic<long> sink{0};

void read_memory(const char* data, size_t bytes) {
    long sum[8] = {};
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        __builtin_prefetch(data + i + 4096);
        const long* line = reinterpret_cast<const long*>(data + i);
        for (int j = 0; j < 8; j++) sum[j] += line[j];
    }
    for (long s : sum) sink += s;
}

// The product instruction on registers alone: multiply-adds done. Written out, because compilers like to keep such sums in memory.
#define ON(op, n) op " %%" REGISTER "14, %%" REGISTER "15, %%" REGISTER #n "\n"
#define ON_TWELVE(op) \
    ON(op, 0) ON(op, 1) ON(op, 2) ON(op, 3) ON(op, 4) ON(op, 5) ON(op, 6) ON(op, 7) ON(op, 8) ON(op, 9) ON(op, 10) ON(op, 11)
#define REPEAT(op)                                                                                                              \
    asm volatile("1:\n" ON_TWELVE(op) "dec %0\n jnz 1b\n"                                                                       \
                 : "+r"(left)                                                                                                   \
                 :                                                                                                              \
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11")

double register_products(bool quantized, long rounds) {
    long left = rounds;
#if defined(__AVX512BF16__)
#define REGISTER "zmm"
    if (quantized) {
        REPEAT("vpdpbusd");
        return double(rounds) * 12 * 64;
    }
    REPEAT("vdpbf16ps");
    return double(rounds) * 12 * 32;
#elif defined(__AVX512VNNI__)
#define REGISTER "zmm"
    if (quantized) {
        REPEAT("vpdpbusd");
        return double(rounds) * 12 * 64;
    }
    REPEAT("vpdpwssd");  // bf16 in fixed point
    return double(rounds) * 12 * 32;
#elif defined(__AVX2__)
#define REGISTER "ymm"
    if (quantized) {
        REPEAT("vpmaddubsw");  // two more instructions make a sum of it: no rate for the whole
        return double(rounds) * 12 * 32;
    }
    REPEAT("vfmadd231ps");
    return double(rounds) * 12 * 8;
#else
    (void)quantized, (void)left;
    return 0;
#endif
}

struct Layer {
    Weight weight;
    bool head;
    LinearArgs args;
};

struct Model {
    std::vector<Layer> layers;
    char* weights;
    size_t bytes = 0;
    double values = 0;
    size_t most_n = 0, most_k = 0, most_prepared = 0;
};

Model build(Kind kind, const std::vector<std::string>& shapes) {
    Model model;
    for (const std::string& shape : shapes) {
        int count, n, k;
        char use = 0;
        if (std::sscanf(shape.c_str(), "%dx%dx%d%c", &count, &n, &k, &use) < 3) std::exit(2);
        for (int i = 0; i < count; i++) {
            Layer layer{};
            layer.weight = Weight{kind, use == 'g', n, k, nullptr};
            layer.head = use == 'h';
            model.layers.push_back(layer);
            model.bytes += weight_bytes(layer.weight);
            model.values += double(n) * k;
            model.most_n = std::max(model.most_n, size_t(n));
            model.most_k = std::max(model.most_k, size_t(k));
            model.most_prepared = std::max(model.most_prepared, linear_prepared_stride(layer.weight));
        }
    }
    model.weights = allocate(model.bytes + (1 << 21));
    char* data = model.weights + (-reinterpret_cast<uintptr_t>(model.weights) & 63);
    // Zero bytes are valid weights of every kind; NaNs and subnormals, which arbitrary bytes contain, are not what is measured.
    std::memset(data, 0, model.bytes);
    for (Layer& layer : model.layers) {
        layer.weight.data = data;
        data += weight_bytes(layer.weight);
    }
    return model;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) return 2;
    const struct {
        const char* name;
        Kind kind;
    } kinds[] = {{"BF16", Kind::kBf16}, {"Q4_0", Kind::kQ4_0}, {"Q4_1", Kind::kQ4_1},
                 {"Q8_0", Kind::kQ8_0}, {"Q4_K", Kind::kQ4_K}, {"Q6_K", Kind::kQ6_K}};
    Kind kind = Kind::kF32;
    for (const auto& known : kinds)
        if (std::strcmp(known.name, argv[1]) == 0) kind = known.kind;
    if (kind == Kind::kF32) {
        std::fprintf(stderr, "%s is no kind of packed weights.\n", argv[1]);
        return 2;
    }
    std::vector<int> row_counts;
    for (char* part = std::strtok(argv[2], ","); part; part = std::strtok(nullptr, ",")) row_counts.push_back(std::atoi(part));
    const int threads = std::atoi(argv[3]);
    const double turn_seconds = std::atof(argv[4]);
    Model model = build(kind, std::vector<std::string>(argv + 5, argv + argc));
    const bool quantized = kind_is_quantized(kind);

    const int most_rows = *std::max_element(row_counts.begin(), row_counts.end());
    const size_t x_stride = linear_stride(int(model.most_k)), y_stride = model.most_n * 4;
    char* x = allocate(size_t(most_rows) * x_stride);
    char* y = allocate(size_t(most_rows) * y_stride);
    char* prepared = allocate(size_t(most_rows) * model.most_prepared + 64);
    std::memset(x, 0, size_t(most_rows) * x_stride);
    std::memset(y, 0, size_t(most_rows) * y_stride);

    std::vector<float> best_value(1);
    std::vector<int32_t> best_index(1);
    for (int m : row_counts) {
        std::vector<double> layers, reading, registers;
        for (Layer& layer : model.layers) {
            LinearArgs& args = layer.args;
            args = LinearArgs{};
            args.weight = &layer.weight;
            args.x = x;
            args.x_stride = linear_stride(layer.weight.k);
            args.m = m;
            args.y = y;
            args.y_stride = y_stride;
            args.threads = threads;
            args.prepared = prepared;
            if (layer.head) {
                args.epilogue = Epilogue::kArgmax;
                args.y = nullptr;
                best_value.resize(std::max(best_value.size(), size_t(linear_items(args)) * size_t(m)));
                best_index.resize(best_value.size());
            }
            if (layer.weight.gated) {
                args.epilogue = Epilogue::kSilu;
                args.output = quantized ? Output::kInt8 : Output::kBf16;
            }
        }
        // Items in the order of the layers, each with its share of the layer's bytes; below 0: those that prepare a layer's rows.
        std::vector<std::pair<Layer*, int>> list;
        for (Layer& layer : model.layers) {
            for (int i = -linear_prepare_items(layer.args); i < linear_items(layer.args); i++) list.emplace_back(&layer, i);
        }
        const auto bytes_of = [&](size_t i) {
            const LinearArgs& args = list[i % list.size()].first->args;
            return list[i % list.size()].second < 0 ? 0.0 : double(weight_bytes(*args.weight)) / linear_items(args);
        };
        const double bytes_to_products = model.values / double(model.bytes) * m;

        for (Layer& layer : model.layers) layer.args.best_value = best_value.data(), layer.args.best_index = best_index.data();

        size_t turn_items = list.size(), next_item = 0;
        size_t turn_bytes = model.bytes / 4 / 4096 * 4096, next_byte = 0;
        const double end = seconds(CLOCK_MONOTONIC) + turn_seconds;
        for (int turn = 0; turn < 4 || seconds(CLOCK_MONOTONIC) < end; turn++) {
            std::atomic<size_t> claimed{next_item};
            const size_t last = next_item + turn_items;
            double bytes = 0;
            for (size_t i = next_item; i < last; i++) bytes += bytes_of(i);
            double used = together(threads, [&](int) {
                Scratch scratch;
                for (size_t i = claimed++; i < last; i = claimed++) {
                    const auto& [layer, item] = list[i % list.size()];
                    if (item < 0) {
                        linear_prepare_item(layer->args, -1 - item, scratch);
                    } else {
                        linear_item(layer->args, item, scratch);
                    }
                }
            });
            if (turn > 0 && used > 0) layers.push_back(bytes / used);
            next_item = last % list.size();
            if (turn == 0) turn_items = std::max<size_t>(size_t(4 * threads), size_t(double(list.size()) * std::min(1.0, kTurnSeconds / std::fabs(used))));

            const size_t part = turn_bytes / size_t(threads) / 64 * 64;
            if (next_byte + turn_bytes > model.bytes) next_byte = 0;
            used = together(threads, [&](int t) { read_memory(model.weights + next_byte + part * size_t(t), part); });
            if (turn > 0 && used > 0) reading.push_back(double(part) * threads / used);
            next_byte += turn_bytes;
            if (turn == 0) turn_bytes = std::min(turn_bytes, size_t(double(turn_bytes) * kTurnSeconds / std::fabs(used)) / 4096 * 4096);

            std::atomic<double> products{0};
            used = together(threads, [&](int) {
                const double done = register_products(quantized, 400000);
                double before = products;
                while (!products.compare_exchange_weak(before, before + done)) {}
            });
            if (turn > 0 && used > 0) registers.push_back(products / used);
        }
        if (layers.empty() || reading.empty() || registers.empty()) {
            std::fprintf(stderr, "%s, %d rows: no turn had the CPUs to itself.\n", argv[1], m);
            continue;
        }
        const double rate = median(layers), products = rate * bytes_to_products;
        std::printf("{\"kind\": \"%s\", \"rows\": %d, \"threads\": %d, \"items\": %zu, \"turns\": %zu, \"gb_s\": %.2f, \"read_gb_s\": %.2f, "
                    "\"gflop_s\": %.1f, \"register_gflop_s\": %.1f}\n",
                    argv[1], m, threads, list.size(), layers.size(), rate / 1e9, median(reading) / 1e9, products * 2 / 1e9,
                    median(registers) * 2 / 1e9);
        std::fflush(stdout);
    }
}
