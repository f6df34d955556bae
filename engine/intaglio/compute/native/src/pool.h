// Threads that walk a list of phases together. A phase is a number of chunks that any thread may take; it is
// over when its chunks are done, not when its threads have arrived, so that a thread which the system has taken
// off its core, or has not woken yet, holds up nobody unless it holds a chunk.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ig {

struct Phase {
    void (*run)(const void* job, int64_t chunk, int64_t thread);
    const void* job;
    int64_t chunks;
};

class Pool {
  public:
    // `spin_us`: how long a waiting thread looks again before it sleeps.
    Pool(int64_t threads, int64_t spin_us);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int64_t threads() const { return threads_; }
    // Run the phases in order; the caller is thread 0. One caller at a time, others wait. In a child after fork,
    // which has the memory but none of the threads, the caller runs everything itself.
    void run(const std::vector<Phase>& phases);

  private:
    // The next chunk of one thread's share of a phase, and the number of a phase's chunks not done yet.
    struct alignas(64) Cell {
        std::atomic<int64_t> value;
    };

    void work(int64_t thread);
    void walk(int64_t thread);
    void take(size_t phase, int64_t thread);
    void await(size_t phase);
    void reserve(size_t phases);
    void wake(std::atomic<int64_t>& sleepers, std::condition_variable& condition);

    // What must not be destroyed in a child: a fork keeps locks and waiters as they stood, without their owners.
    struct Sleepers {
        std::vector<std::thread> workers;
        std::mutex caller, mutex;
        std::condition_variable start, progress;
    };

    const int64_t threads_, spins_, process_;
    std::unique_ptr<Sleepers> sleep_ = std::make_unique<Sleepers>();
    const std::vector<Phase>* phases_ = nullptr;
    std::unique_ptr<Cell[]> next_, left_;
    size_t capacity_ = 0;
    std::atomic<int64_t> idle_{0}, waiting_{0}, inside_{0};
    std::atomic<uint64_t> program_{0};
    std::atomic<bool> open_{false}, stop_{false};
};

}  // namespace ig
