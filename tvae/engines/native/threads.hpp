// Threads: work in phases on the OpenMP pool that torch has started. build.py hands over the pool's entry point.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

namespace {

using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);
Parallel parallel = nullptr;

// Phases of work, each a number of tasks that threads take one by one; a phase begins when the one before is done. All
// phases share one call of the pool: a call costs microseconds, but milliseconds when another process holds a core.
class Phases {
  struct Phase {
    int64_t count;
    std::function<void(int64_t)> work;
    std::atomic<int64_t> next{0}, done{0};
    Phase(int64_t count, std::function<void(int64_t)> work) : count(count), work(std::move(work)) {}
  };
  std::deque<Phase> phases;
  int64_t most = 0;

  static void work_through(void *self) {
    for (auto &phase : static_cast<Phases *>(self)->phases) {
      for (int64_t i; (i = phase.next++) < phase.count; ++phase.done) phase.work(i);
      while (phase.done < phase.count) std::this_thread::yield();
    }
  }

public:
  void add(int64_t count, std::function<void(int64_t)> work) {
    phases.emplace_back(count, std::move(work));
    most = std::max(most, count);
  }
  void run(int64_t n_threads) {
    if (parallel && n_threads > 1 && most > 1)
      parallel(work_through, this, static_cast<unsigned>(n_threads), 0);
    else
      work_through(this);
  }
};

}  // namespace
