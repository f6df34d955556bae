// What a caller holds: an instruction set, threads, and memory that grows to the largest step seen.
#pragma once
#include <cstdlib>
#include <new>
#include <vector>

#include "kernels.h"
#include "layout.h"
#include "pool.h"

namespace ig {

// Aligned memory that only grows. Fresh memory is zero; contents do not survive growth.
class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { std::free(memory_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    uint8_t* need(int64_t bytes);
    int64_t bytes() const { return bytes_; }

  private:
    uint8_t* memory_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace ig

struct IgContext {
    IgContext(const ig::KernelTable& kernels, int64_t threads, int64_t spin_us)
        : table(kernels), pool(threads, spin_us), scratch(size_t(pool.threads())), draws(size_t(pool.threads())),
          stamp(size_t(pool.threads())) {}

    // Scratch of every thread, at least `bytes` each, with room for activations of a few rows behind it.
    void prepare_scratch(int64_t bytes, int64_t private_bytes);
    uint8_t* private_rows(int64_t thread) { return scratch[size_t(thread)].need(0) + scratch_bytes; }

    const ig::KernelTable& table;
    ig::Pool pool;
    std::vector<ig::Buffer> scratch, draws;
    // Which linear a thread's private rows were normalised for.
    struct alignas(64) Stamp {
        int64_t value = 0;
    };
    std::vector<Stamp> stamp;
    int64_t scratch_bytes = 0, stamps = 0;
    ig::Buffer hidden, acts, qkv, mixed, gated, picked, own_kv;
    std::vector<ig::Phase> phases;
};
