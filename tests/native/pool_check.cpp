// Runs random lists of phases on pools of several sizes and checks that every item of every phase is done exactly once, and no item
// before all of the phase before it. Prints what failed and returns 1, or returns 0.
#include <time.h>

#include <cstdio>
#include <random>

#include "../../csrc/pool.h"

using namespace octavo;

namespace {

struct Counted : Work {
    std::atomic<int>* done_before = nullptr;  // of the phase before; all of its items are expected
    int expected_before = 0;
    std::atomic<int> done{0};
    std::atomic<int> times[64] = {};
    std::atomic<bool> early{false};
    int length = 0;

    void item(int item, Scratch&) override {
        if (done_before && done_before->load() != expected_before) early = true;
        for (volatile int i = 0; i < length; i++) {}
        times[size_t(item)]++;
        done++;
    }
};

bool check(Pool& pool, std::mt19937& random) {
    const int count = int(random() % 9);
    std::vector<Counted> works(static_cast<size_t>(count));
    std::vector<Phase> phases;
    Counted* before = nullptr;
    int before_items = 0;
    for (int i = 0; i < count; i++) {
        Counted& work = works[size_t(i)];
        const int items = int(random() % 4 == 0 ? random() % 64 : random() % 3);
        work.length = int(random() % 3 == 0 ? random() % 1000 : random() % 50);
        work.done_before = before ? &before->done : nullptr;
        work.expected_before = before_items;
        phases.push_back({&work, items});
        before = &work;
        before_items = items;
    }
    if (random() % 4 == 0) pool.wake();
    pool.run(phases.data(), count);
    for (int i = 0; i < count; i++) {
        for (int item = 0; item < 64; item++) {
            const int times = works[size_t(i)].times[size_t(item)];
            if (times != (item < phases[size_t(i)].items)) return std::printf("item %d was done %d times\n", item, times), false;
        }
        if (works[size_t(i)].early) return std::printf("phase %d began before the one before it had ended\n", i), false;
        if (phases[size_t(i)].ended < phases[size_t(i)].began) return std::printf("phase %d ended before it began\n", i), false;
    }
    return true;
}

}  // namespace

int main() {
    std::mt19937 random(1);
    for (const std::vector<int>& cpus : {std::vector<int>{-1}, {0}, {-1, -1}, {-1, -1, -1, -1, -1, -1, -1}}) {
        Pool pool(cpus);
        for (int round = 0; round < 10000; round++) {
            if (!check(pool, random)) return 1;
            if (round % 500 == 0) {  // until the threads sleep
                const timespec pause{0, 3000000};
                nanosleep(&pause, nullptr);
            }
        }
        if (pool.busy_ticks() == 0) return std::printf("no time was counted\n"), 1;
    }
    return 0;
}
