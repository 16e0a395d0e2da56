#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

#include "ticks.h"

namespace octavo {

namespace {

// A thread that comes late takes the counter below these by one, once a phase: far less than the distance between them.
constexpr uint32_t kIdle = 1u << 19;
constexpr uint32_t kBias = 1u << 20;

constexpr int kSpinMicroseconds = 30;          // a thread that waits longer gives its core to others that want it
constexpr int kIdleMicroseconds = 50;          // between lists it sleeps then: an engine that waits for requests burns nothing
constexpr int kInsideMicroseconds = 2000;      // within a list it comes back: waking up costs tens of microseconds

// Without atomic<T>::wait, whose implementations spin as they please. The upper half of the state is what sleepers look at.
uint32_t* upper_half(std::atomic<uint64_t>& state) {
    uint32_t* halves = reinterpret_cast<uint32_t*>(&state);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return halves + 1;
#else
    return halves;
#endif
}

void futex_wait(uint32_t* word, uint32_t value) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0); }
void futex_wake(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

// Keeps the calling thread on one CPU, and lets it go where it came from.
class Pinned {
public:
    explicit Pinned(int cpu) {
        if (cpu < 0 || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        changed_ = sched_setaffinity(0, sizeof one, &one) == 0;
    }
    ~Pinned() {
        if (changed_) sched_setaffinity(0, sizeof before_, &before_);
    }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;

private:
    cpu_set_t before_;
    bool changed_ = false;
};

uint32_t sequence_of(uint64_t state) { return uint32_t(state >> 32); }
uint32_t counter_of(uint64_t state) { return uint32_t(state); }
bool is_idle(uint64_t state) { return counter_of(state) <= kIdle; }

}  // namespace

Pool::Pool(const std::vector<int>& cpus) : state_(kIdle) {
    for (int cpu : cpus) {
        workers_.push_back(std::make_unique<Worker>());
        workers_.back()->cpu = cpu;
    }
    for (size_t i = 1; i < workers_.size(); i++) workers_[i]->thread = std::thread([this, i] { serve(int(i)); });
}

Pool::~Pool() {
    closing_.store(true);
    publish(kIdle);
    for (size_t i = 1; i < workers_.size(); i++) workers_[i]->thread.join();
}

uint64_t Pool::busy_ticks() const {
    uint64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->busy.load(std::memory_order_relaxed);
    return sum;
}

void Pool::run(Phase* phases, int count) {
    const Pinned pinned(threads() > 1 ? workers_[0]->cpu : -1);
    Worker& self = *workers_[0];
    phases_ = phases;
    count_ = count;
    current_ = -1;
    finish(self);  // opens the first phase
    uint32_t seen = 0;
    for (;;) {
        if (work_on(self, seen)) continue;
        if (is_idle(state_.load(std::memory_order_acquire))) return;  // after looking for items: `seen` may be that of the end itself
        wait_for_change(seen);
    }
}

void Pool::wake() {
    if (sleepers_.load() > 0) publish(kBias);  // no items, but no longer idle
}

void Pool::serve(int index) {
    Worker& self = *workers_[index];
    if (self.cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(self.cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
    uint32_t seen = 0;
    while (!closing_.load(std::memory_order_acquire)) {
        if (!work_on(self, seen)) wait_for_change(seen);
    }
}

// Returns whether it did any item; `seen` becomes the sequence number of the phase in which it found none left.
bool Pool::work_on(Worker& worker, uint32_t& seen) {
    const uint64_t peek = state_.load(std::memory_order_acquire);
    if (counter_of(peek) <= kBias) {
        seen = sequence_of(peek);
        return false;
    }
    uint64_t claimed = state_.fetch_sub(1, std::memory_order_acq_rel);
    seen = sequence_of(claimed);
    if (counter_of(claimed) <= kBias) return false;
    // An item in hand keeps its phase open, and with it everything that was published when it was opened.
    Work& work = *phases_[current_].work;
    const int items = phases_[current_].items;
    const uint64_t begin = ticks();
    int done = 0;
    do {
        work.item(items - int(counter_of(claimed) - kBias), worker.scratch);
        done++;
        if (counter_of(state_.load(std::memory_order_relaxed)) <= kBias) break;
        claimed = state_.fetch_sub(1, std::memory_order_acq_rel);
    } while (counter_of(claimed) > kBias);
    worker.busy.store(worker.busy.load(std::memory_order_relaxed) + ticks() - begin, std::memory_order_relaxed);
    if (unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) finish(worker);
    return true;
}

void Pool::finish(Worker& worker) {
    int at = current_;
    uint64_t now = ticks();
    if (at >= 0) phases_[at].ended = now;
    for (at++; at < count_; at++) {
        Phase& phase = phases_[at];
        phase.began = now;
        if (phase.items > 1 && threads() > 1) break;
        for (int i = 0; i < phase.items; i++) phase.work->item(i, worker.scratch);
        const uint64_t end = ticks();
        worker.busy.store(worker.busy.load(std::memory_order_relaxed) + end - now, std::memory_order_relaxed);
        phase.ended = now = end;
    }
    current_ = at;
    unfinished_.store(at < count_ ? phases_[at].items : 0, std::memory_order_relaxed);
    publish(at < count_ ? kBias + uint32_t(phases_[at].items) : kIdle);
}

// Whoever opened the phase or did its last item may publish; from then on the lists belong to who claims next.
void Pool::publish(uint32_t counter) {
    const uint32_t next = ++sequence_;
    state_.exchange(uint64_t(next) << 32 | counter);  // sequentially consistent: before looking for sleepers
    if (sleepers_.load() > 0 && sleepers_.exchange(0) > 0) futex_wake(upper_half(state_));
}

void Pool::wait_for_change(uint32_t seen) {
    const uint64_t at_first = state_.load(std::memory_order_acquire);
    if (sequence_of(at_first) != seen) return;
    const auto limit = std::chrono::microseconds(is_idle(at_first) ? kIdleMicroseconds : kInsideMicroseconds);
    const auto begin = std::chrono::steady_clock::now();
    auto waited = begin - begin;
    while (waited < limit) {
        for (int i = 0; i < 64; i++) {
            if (sequence_of(state_.load(std::memory_order_acquire)) != seen) return;
            pause_core();
        }
        // Whoever is waited for may need this very core.
        if (waited > std::chrono::microseconds(kSpinMicroseconds)) sched_yield();
        waited = std::chrono::steady_clock::now() - begin;
    }
    sleepers_.fetch_add(1);
    futex_wait(upper_half(state_), seen);  // returns at once if the number has changed since
}

}  // namespace octavo
