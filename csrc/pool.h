// Pool: threads that carry out a list of phases together. The thread that calls `run` is the first of them.
//
// A phase is a number of independent items; the next phase begins once all items of this one are done. Threads claim items one at a
// time from a single counter, so a thread that the system holds up delays nobody unless it has an item in hand. Phases of one item
// are done at once by whoever finished the phase before: a small operation between two large ones costs no meeting of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "scratch.h"

namespace octavo {

class Work {
public:
    virtual ~Work() = default;
    virtual void item(int item, Scratch& scratch) = 0;
};

struct Phase {
    Work* work;
    int items;           // 0: passed over
    uint64_t began = 0;  // ticks
    uint64_t ended = 0;
};

class Pool {
public:
    // One thread for each entry, pinned to that CPU; the caller is pinned for the time of `run` alone. Negative: not pinned.
    explicit Pool(const std::vector<int>& cpus);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return int(workers_.size()); }

    // Carries out the phases in order. One call at a time.
    void run(Phase* phases, int count);

    // Lets sleeping threads wake up while the caller still prepares: `run` follows.
    void wake();

    // Ticks that all threads together have spent inside items, since the pool was made. Waiting is not counted.
    uint64_t busy_ticks() const;

private:
    struct alignas(64) Worker {
        Scratch scratch;
        std::atomic<uint64_t> busy{0};  // written by its thread alone
        std::thread thread;
        int cpu = -1;
    };

    void serve(int index);                                  // a thread's life
    bool work_on(Worker& worker, uint32_t& seen);           // claims items until none is left
    void finish(Worker& worker);                            // after the last item of a phase: small phases, then opens the next
    void wait_for_change(uint32_t seen);                    // until the sequence number is no longer `seen`
    void publish(uint32_t counter);                         // the next sequence number, with this counter

    // Upper half: a sequence number that every change of phase raises. Lower half: kBias + items left to claim; at most kBias: none;
    // at most kIdle: no list is being carried out.
    alignas(64) std::atomic<uint64_t> state_;
    alignas(64) std::atomic<int> unfinished_{0};            // items of the open phase that are not done
    std::atomic<int> sleepers_{0};
    std::atomic<bool> closing_{false};
    Phase* phases_ = nullptr;                               // those of `run`; what they hold is published by state_
    int count_ = 0;
    int current_ = 0;                                       // index of the open phase
    uint32_t sequence_ = 0;                                 // of the open phase; touched only by who may open one
    std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace octavo
