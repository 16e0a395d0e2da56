// Times the attention kernels over contiguous and paged placements, beside the machine's own limits. Built and run by
// attention.py.
//
// One line of output per measurement: `name key=value ...`. Placements are timed in turn, round after round, and the median of
// the rounds is printed, so that what else the machine does falls on all of them alike.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../../csrc/attention.h"
#include "../../csrc/lanes.h"

using namespace octavo;

namespace {

// On a machine that others use, one thread's own processor time says more than what the clock on the wall says.
bool processor_time = false;

double seconds() {
    timespec now;
    clock_gettime(processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

// Of the rounds' times, the one at this fraction: 0.5 is the median. On a busy machine small ones tell what an idle one would do.
double quantile = 0.5;

// How far the middle half of the rounds lies apart, as a fraction of the median.
double spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size() - 1;
    return (values[n * 3 / 4] - values[n / 4]) / values[n / 2];
}

double typical(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[size_t(double(values.size() - 1) * quantile)];
}

// Threads that wait spinning for work: what the engine's own pool does between the operations of a step.
class Team {
public:
    explicit Team(int threads) : scratches_(threads) {
        for (int i = 1; i < threads; ++i) {
            threads_.emplace_back([this, i] {
                for (int round = 1;; ++round) {
                    while (round_.load(std::memory_order_acquire) < round) {
                    }
                    if (stop_) return;
                    claim(i);
                    done_.fetch_add(1, std::memory_order_release);
                }
            });
        }
    }

    ~Team() {
        stop_ = true;
        round_.fetch_add(1);
        for (auto& thread : threads_) thread.join();
    }

    void run(int items, const std::function<void(int, Scratch&)>& work) {
        work_ = &work;
        items_ = items;
        next_ = 0;
        done_ = 0;
        round_.fetch_add(1, std::memory_order_release);
        claim(0);
        while (done_.load(std::memory_order_acquire) < int(threads_.size())) {
        }
    }

private:
    void claim(int thread) {
        for (int item; (item = next_.fetch_add(1)) < items_;) (*work_)(item, scratches_[thread]);
    }

    std::vector<Scratch> scratches_;
    std::vector<std::thread> threads_;
    const std::function<void(int, Scratch&)>* work_ = nullptr;
    int items_ = 0;
    std::atomic<int> next_{0}, done_{0}, round_{0};
    std::atomic<bool> stop_{false};
};

enum class PageKind { kSmall, kHuge, kFile };

struct Memory {
    char* data;
    size_t bytes;
    // kFile: pages of a file in memory, as the virtual layout has them, brought in in random order.
    explicit Memory(size_t size, PageKind pages) : bytes(size) {
        const int file = pages == PageKind::kFile ? memfd_create("kv", MFD_CLOEXEC) : -1;
        if (file >= 0 && ftruncate(file, off_t(size))) std::abort();
        const int flags = pages == PageKind::kFile ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
        data = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0));
        if (data == MAP_FAILED) std::abort();
        if (file >= 0) close(file);
        if (pages == PageKind::kHuge) madvise(data, size, MADV_HUGEPAGE);
        if (pages == PageKind::kFile) {
            std::vector<size_t> order(size / 4096);
            std::iota(order.begin(), order.end(), size_t(0));
            std::shuffle(order.begin(), order.end(), std::mt19937(5));
            for (size_t page : order) data[page * 4096] = 0;
        }
        uint32_t state = 1;
        for (size_t i = 0; i < size / 2; ++i) {  // bf16 between -2 and 2, none of them tiny
            state = state * 1664525u + 1013904223u;
            reinterpret_cast<uint16_t*>(data)[i] = uint16_t((state >> 16 & 0x80ff) | 0x3f00);
        }
    }
    ~Memory() { munmap(data, bytes); }
};

struct Options {
    int heads = 9, kv_heads = 3, head_dim = 64, threads = 2, rounds = 15, window = 0;
    bool huge = false;
    KvKind kind = KvKind::kBf16;
    double budget_s = 0.03;  // of one timing
    size_t decode_bytes = size_t(256) << 20;  // of keys and values that a decoding step streams: more than caches hold
};

constexpr int kVirtual = -1;  // in place of a run's length

// `batch` sequences of `context` tokens each in as many layers as make the cache stream from memory, like a step does.
class Cache {
public:
    Cache(const Options& o, int batch, int context, size_t enough_bytes)
        : options_(o),
          batch_(batch),
          context_(context),
          stride_(o.kind == KvKind::kBf16 ? o.kv_heads * o.head_dim * 2 : o.kv_heads * (o.head_dim + 4)),
          capacity_((context + 255) / 256 * 256),
          layers_(int(std::clamp<size_t>(enough_bytes / (size_t(batch) * capacity_ * stride_ * 2), 1, 30))),
          memory_(bytes(), o.huge ? PageKind::kHuge : PageKind::kSmall),
          mapped_(bytes(), PageKind::kFile) {
        if (o.kind != KvKind::kInt8) return;
        for (const Memory* memory : {&memory_, &mapped_}) {
            for (size_t token = 0; token < size_t(layers_) * 2 * batch * capacity_; ++token) {
                float scales[64];
                std::fill(scales, scales + 64, 0.01f);
                std::memcpy(memory->data + token * stride_ + o.kv_heads * o.head_dim, scales, o.kv_heads * sizeof(float));
            }
        }
    }

    int layers() const { return layers_; }
    double token_bytes() const { return 2.0 * stride_; }

    // run 0: one run a sequence. kVirtual: likewise, over pages of a file. Otherwise blocks in random order over the whole arena.
    void place(int run) {
        const int length = run > 0 ? run : capacity_;
        data_ = run == kVirtual ? mapped_.data : memory_.data;
        width_ = capacity_ / length;
        runs_.assign(batch_, length);
        table_.resize(size_t(batch_) * width_);
        std::iota(table_.begin(), table_.end(), 0);
        if (run > 0) std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
        for (int32_t& entry : table_) entry *= length;
    }

    KvView view(int layer) const {
        const int64_t part = int64_t(batch_) * capacity_ * stride_;
        char* keys = data_ + layer * 2 * part;
        const int64_t head = options_.head_dim * (options_.kind == KvKind::kBf16 ? 2 : 1);
        const int64_t scales = options_.kv_heads * int64_t(options_.head_dim);
        return {keys, keys + part, stride_, head, scales, table_.data(), runs_.data(), width_, options_.kind};
    }

private:
    size_t bytes() const { return size_t(layers_) * 2 * batch_ * capacity_ * stride_ + 64; }

    Options options_;
    int batch_, context_;
    int64_t stride_;
    int capacity_, layers_;
    Memory memory_, mapped_;
    char* data_ = nullptr;
    int width_ = 1;
    std::vector<int32_t> table_, runs_;
};

struct Timing {
    double seconds, spread;
};

// Seconds per layer of attention over `rows`, for each placement.
std::vector<Timing> time_placements(const Options& o, Team& team, Cache& cache, const std::vector<Row>& rows,
                                    const std::vector<int>& runs) {
    int tokens = 0;
    for (const Row& row : rows) tokens += row.length;
    const int64_t width = int64_t(o.heads) * o.head_dim;
    std::vector<bf16> q(tokens * width), out(tokens * width);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (bf16& value : q) value = float_to_bf16(normal(random));
    AttentionPlan plan;
    attention_plan(plan, {o.heads, o.kv_heads, o.head_dim, o.kind}, rows.data(), int(rows.size()), o.window, o.threads);

    const auto layer = [&](int l) {
        AttentionArgs args{&plan, cache.view(l), rows.data(), q.data(), width, out.data(), width, 0.125f, 0.0f};
        team.run(attention_items(args), [&](int item, Scratch& scratch) { attention_item(args, item, scratch); });
        if (attention_merge_items(args)) {
            team.run(attention_merge_items(args), [&](int item, Scratch& scratch) { attention_merge_item(args, item, scratch); });
        }
    };
    std::vector<std::vector<double>> times(runs.size());
    int at = 0;
    for (int round = 0; round < o.rounds; ++round) {
        for (size_t i = 0; i < runs.size(); ++i) {
            cache.place(runs[i]);
            const auto begin = seconds();
            int done = 0;
            do {  // on through the layers: a timing shorter than a pass finds them out of the caches, too
                layer(at);
                at = (at + 1) % cache.layers();
                ++done;
            } while (seconds() - begin < o.budget_s);
            times[i].push_back((seconds() - begin) / done);
        }
    }
    std::vector<Timing> result;
    for (auto& each : times) result.push_back({typical(each), spread(each)});
    return result;
}

// GB/s of reading memory in order with all threads: the ceiling of decoding.
double read_bandwidth(const Options& o, Team& team) {
    constexpr size_t kBytes = 192 << 20, kPart = 24 << 20;
    Memory memory(kBytes, o.huge ? PageKind::kHuge : PageKind::kSmall);
    std::vector<double> rates;
    std::atomic<float> sink{0};
    for (int round = 0; round < o.rounds; ++round) {
        const auto begin = seconds();
        constexpr int kItems = kPart >> 17;
        const size_t place = round * kPart % kBytes;
        team.run(kItems, [&](int item, Scratch&) {
            const float* part = reinterpret_cast<const float*>(memory.data + place + item * (kPart / kItems));
            Lanes total[4] = {Lanes::set(0), Lanes::set(0), Lanes::set(0), Lanes::set(0)};
            for (size_t i = 0; i < kPart / kItems / 4; i += 4 * Lanes::count) {
                for (int j = 0; j < 4; ++j) total[j] = max(total[j], Lanes::load(part + i + j * Lanes::count));
            }
            sink = sum(total[0] + total[1] + total[2] + total[3]);
        });
        rates.push_back((seconds() - begin) / kPart * 1e9);
    }
    return 1 / typical(rates);
}

// Multiply-adds per second, all threads, of the instruction that attention's products are made of, from registers alone.
double product_rate(const Options& o, Team& team) {
    std::vector<double> rates;
    std::atomic<float> sink{0};
    for (int round = 0; round < o.rounds; ++round) {
        constexpr int kTurns = 20000, kSums = 24;
        const auto begin = seconds();
        double each = 0;
        team.run(o.threads, [&](int, Scratch&) {
#if defined(__AVX512BF16__)
            __m512 s[kSums];
            for (int j = 0; j < kSums; ++j) s[j] = _mm512_set1_ps(float(j));
            __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = (__m512bh)_mm512_set1_epi32(0x3f813f80);
            for (int i = 0; i < kTurns; ++i) {
                asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
                for (int j = 0; j < kSums; ++j) s[j] = _mm512_dpbf16_ps(s[j], a, b);
            }
            float total = 0;
            for (auto& x : s) total += _mm512_reduce_add_ps(x);
            sink = total;
#else
            Lanes s[12];
            for (int j = 0; j < 12; ++j) s[j] = Lanes::set(float(j));
            Lanes a = Lanes::set(1.0f), b = Lanes::set(1.01f);
            for (int i = 0; i < kTurns * 3; ++i) {
#if defined(__x86_64__)
                asm volatile("" : "+x"(a.v), "+x"(b.v));
#elif defined(__aarch64__)
                asm volatile("" : "+w"(a.v), "+w"(b.v));
#endif
#pragma GCC unroll 12
                for (int j = 0; j < 12; ++j) s[j] = fma(a, b, s[j]);
            }
            float total = 0;
            for (auto& x : s) total += sum(x);
            sink = total;
#endif
        });
#if defined(__AVX512BF16__)
        each = double(kTurns) * kSums * 32;
#else
        each = double(kTurns) * 3 * 12 * Lanes::count;
#endif
        rates.push_back((seconds() - begin) / (each * o.threads));
    }
    return 1 / typical(rates);
}

std::vector<int> numbers(const char* text) {
    std::vector<int> found;
    for (const char* at = text; *at;) {
        char* end;
        found.push_back(int(std::strtol(at, &end, 10)));
        at = *end ? end + 1 : end;
    }
    return found;
}

}  // namespace

int main(int argc, char** argv) {
    Options o;
    std::string what = "all";
    std::vector<int> contexts{128, 512, 1024, 4096, 8192}, batches{1, 8, 64}, runs{0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const char* value = argv[i + 1];
        if (name == "--what") what = value;
        else if (name == "--contexts") contexts = numbers(value);
        else if (name == "--batches") batches = numbers(value);
        else if (name == "--runs") runs = numbers(value);
        else if (name == "--heads") o.heads = std::atoi(value);
        else if (name == "--kv-heads") o.kv_heads = std::atoi(value);
        else if (name == "--head-dim") o.head_dim = std::atoi(value);
        else if (name == "--threads") o.threads = std::atoi(value);
        else if (name == "--rounds") o.rounds = std::atoi(value);
        else if (name == "--window") o.window = std::atoi(value);
        else if (name == "--processor-time") processor_time = std::atoi(value) != 0;
        else if (name == "--megabytes") o.decode_bytes = size_t(std::atoi(value)) << 20;
        else if (name == "--quantile") quantile = std::atof(value);
        else if (name == "--budget-ms") o.budget_s = std::atof(value) * 1e-3;
        else if (name == "--huge") o.huge = std::atoi(value) != 0;
        else if (name == "--int8") o.kind = std::atoi(value) ? KvKind::kInt8 : KvKind::kBf16;
        else {
            std::fprintf(stderr, "unknown option %s\n", name.c_str());
            return 2;
        }
    }
    if (processor_time && o.threads != 1) {
        std::fprintf(stderr, "--processor-time measures one thread: add --threads 1\n");
        return 2;
    }
    Team team(o.threads);
    const auto limits = [&] {
        std::printf("limits gb_s=%.2f gmac_s=%.1f\n", read_bandwidth(o, team), product_rate(o, team) / 1e9);
        std::fflush(stdout);
    };
    limits();
    if (what == "all" || what == "decode") {
        for (int context : contexts) {
            for (int batch : batches) {
                if (double(batch) * context > 64 * 8192) continue;
                Cache cache(o, batch, context, o.decode_bytes);
                std::vector<Row> rows;
                for (int i = 0; i < batch; ++i) rows.push_back({i, context - 1, 1, i});
                const auto times = time_placements(o, team, cache, rows, runs);
                for (size_t i = 0; i < runs.size(); ++i) {
                    const double tokens = double(batch) * context;
                    std::printf("decode context=%d batch=%d run=%d layers=%d ns_token=%.3f spread=%.3f gb_s=%.2f\n", context,
                                batch, runs[i], cache.layers(), times[i].seconds * 1e9 / tokens, times[i].spread,
                                tokens * cache.token_bytes() / times[i].seconds / 1e9);
                }
                std::fflush(stdout);
            }
        }
    }
    limits();
    if (what == "all" || what == "prefill") {
        for (int context : contexts) {
            const int chunk = std::min(context, 4096);
            Cache cache(o, 1, context, 32 << 20);
            const std::vector<Row> rows{{0, context - chunk, chunk, 0}};
            const auto times = time_placements(o, team, cache, rows, runs);
            double pairs = 0;  // (query, token) pairs: what a causal prefill has to compute
            for (int p = context - chunk; p < context; ++p) pairs += o.window ? std::min(p + 1, o.window) : p + 1;
            for (size_t i = 0; i < runs.size(); ++i) {
                std::printf("prefill context=%d chunk=%d run=%d layers=%d ns_token=%.2f spread=%.3f gmac_s=%.1f\n", context,
                            chunk, runs[i], cache.layers(), times[i].seconds * 1e9 / chunk, times[i].spread,
                            pairs * o.heads * o.head_dim * 2 / times[i].seconds / 1e9);
            }
            std::fflush(stdout);
        }
    }
    limits();
}
