#include "pool.h"

#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif
#include <chrono>

namespace ig {

namespace {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// How many looks fit into `us` microseconds; a pause takes from 10 to 150 cycles depending on the processor. The best of
// several short probes: one during which another process had the core would make every later wait too short to spin.
int64_t spins_for(int64_t us) {
    if (us <= 0) return 0;
    constexpr int64_t probes = 16, looks = 200;
    double best = 0;
    for (int64_t p = 0; p < probes; p++) {
        const auto before = std::chrono::steady_clock::now();
        for (int64_t i = 0; i < looks; i++) relax();
        const double took = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
        if (took > 0 && (best == 0 || took < best)) best = took;
    }
    return best > 0 ? int64_t(double(us) * looks / best) + 1 : looks;
}

}  // namespace

Pool::Pool(int64_t threads, int64_t spin_us)
    : threads_(threads < 1 ? 1 : threads), spins_(spins_for(spin_us)), process_(int64_t(getpid())) {
    for (int64_t i = 1; i < threads_; i++) sleep_->workers.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
    if (int64_t(getpid()) != process_) {
        (void)sleep_.release();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(sleep_->mutex);
        stop_ = true;
        sleep_->start.notify_all();
    }
    for (auto& worker : sleep_->workers) worker.join();
}

void Pool::run(const std::vector<Phase>& phases) {
    if (threads_ == 1 || int64_t(getpid()) != process_) {
        for (const Phase& phase : phases)
            for (int64_t chunk = 0; chunk < phase.chunks; chunk++) phase.run(phase.job, chunk, 0);
        return;
    }
    std::lock_guard<std::mutex> one(sleep_->caller);
    reserve(phases.size());
    for (size_t p = 0; p < phases.size(); p++) {
        left_[p].value.store(phases[p].chunks, std::memory_order_relaxed);
        for (int64_t t = 0; t < threads_; t++)
            next_[p * size_t(threads_) + size_t(t)].value.store(t * phases[p].chunks / threads_,
                                                                std::memory_order_relaxed);
    }
    phases_ = &phases;
    open_ = true;
    program_++;
    wake(idle_, sleep_->start);
    walk(0);
    open_ = false;
    // A worker that came in sees every phase finished and leaves; one that did not come finds the door closed.
    for (int64_t i = 0; inside_ != 0; i++) {
        if (i < spins_) relax();
        else std::this_thread::yield();
    }
}

void Pool::reserve(size_t phases) {
    if (phases <= capacity_) return;
    next_.reset(new Cell[phases * size_t(threads_)]);
    left_.reset(new Cell[phases]);
    capacity_ = phases;
}

void Pool::work(int64_t thread) {
    uint64_t seen = 0;
    for (;;) {
        for (int64_t i = 0; i < spins_ && program_ == seen && !stop_; i++) relax();
        if (program_ == seen) {
            idle_++;
            std::unique_lock<std::mutex> lock(sleep_->mutex);
            sleep_->start.wait(lock, [&] { return program_ != seen || stop_; });
            lock.unlock();
            idle_--;
        }
        if (stop_) return;
        seen = program_;
        inside_++;
        if (open_) walk(thread);
        inside_--;
    }
}

void Pool::walk(int64_t thread) {
    const size_t count = phases_->size();
    for (size_t p = 0; p < count; p++) {
        take(p, thread);
        await(p);
    }
}

// Own share first, so that a thread's chunks follow each other in memory; then what others have left.
void Pool::take(size_t phase, int64_t thread) {
    const Phase& work = (*phases_)[phase];
    for (int64_t d = 0; d < threads_; d++) {
        const int64_t owner = (thread + d) % threads_, end = (owner + 1) * work.chunks / threads_;
        auto& next = next_[phase * size_t(threads_) + size_t(owner)].value;
        while (next.load(std::memory_order_relaxed) < end) {
            const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
            if (chunk >= end) break;
            work.run(work.job, chunk, thread);
            if (left_[phase].value.fetch_sub(1) == 1) wake(waiting_, sleep_->progress);
        }
    }
}

void Pool::await(size_t phase) {
    auto& left = left_[phase].value;
    for (int64_t i = 0; i < spins_ && left.load(std::memory_order_acquire) != 0; i++) relax();
    if (left.load(std::memory_order_acquire) == 0) return;
    waiting_++;
    {
        std::unique_lock<std::mutex> lock(sleep_->mutex);
        sleep_->progress.wait(lock, [&] { return left == 0; });
    }
    waiting_--;
}

// The sleeper counts itself before it looks a last time, the waker looks at the count after its change: one of
// the two sees the other.
void Pool::wake(std::atomic<int64_t>& sleepers, std::condition_variable& condition) {
    if (sleepers == 0) return;
    std::lock_guard<std::mutex> lock(sleep_->mutex);
    condition.notify_all();
}

}  // namespace ig
