// Scratch: memory that a thread keeps between work items, so that an item allocates nothing once the buffer has grown.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace octavo {

class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(data_); }

    // Room for `count` values, 64-byte aligned, contents undefined. Valid until the next call: one item asks once, for all it needs.
    template <class T>
    T* get(size_t count) {
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        if (bytes > capacity_) {
            std::free(data_);
            data_ = std::aligned_alloc(64, bytes);
            capacity_ = data_ ? bytes : 0;
            if (!data_) throw std::bad_alloc();
        }
        return static_cast<T*>(data_);
    }

private:
    void* data_ = nullptr;
    size_t capacity_ = 0;
};

}  // namespace octavo
