// Threads: work in phases on a pool of our own, which needs nothing but standard C++.
//
// Nobody waits for a thread, only for tasks: the caller works too, and a thread that another process keeps from its
// core holds up no more than the task it has begun. Who has to wait looks for a tenth of a millisecond, then sleeps: on cores
// that others use as well, a thread that kept looking would take the time of the one it waits for.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Wait until `is_ready`, which `announce` makes others look at again.
class Gate {
  static constexpr auto AWAKE = std::chrono::microseconds(100);  // about what it takes to wake a thread
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int64_t> n_asleep{0};

public:
  template <class Ready> void wait(Ready is_ready) {
    const auto end = std::chrono::steady_clock::now() + AWAKE;
    do
      for (int i = 0; i < 16; ++i, pause_briefly())
        if (is_ready()) return;
    while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> lock(mutex);
    ++n_asleep;  // before the last look: who makes it ready either is seen by it, or sees a sleeper
    changed.wait(lock, is_ready);
    --n_asleep;
  }
  void announce() {
    if (n_asleep == 0) return;
    { std::lock_guard<std::mutex> lock(mutex); }  // a sleeper that has looked in vain is asleep now
    changed.notify_all();
  }
};

// Phases of work, each a number of tasks that threads take one by one; a phase begins when the one before is done.
class Job {
  struct Phase {
    int64_t count;
    std::function<void(int64_t)> work;
    std::atomic<int64_t> next{0}, done{0};
    Phase(int64_t count, std::function<void(int64_t)> work) : count(count), work(std::move(work)) {}
  };
  std::deque<Phase> phases;
  Gate gate;

public:
  int64_t most = 0;                 // tasks in a phase
  std::atomic<int64_t> n_seats{0};  // for threads besides the caller

  void add(int64_t count, std::function<void(int64_t)> work) {
    phases.emplace_back(count, std::move(work));
    most = std::max(most, count);
  }
  void work() {
    for (auto &phase : phases) {
      for (int64_t i; (i = phase.next++) < phase.count;) {
        phase.work(i);
        if (++phase.done == phase.count) gate.announce();
      }
      gate.wait([&] { return phase.done == phase.count; });
    }
  }
};

class Pool {
  std::shared_ptr<Job> job;
  std::mutex mutex;  // of `job`, with `n_jobs` its number
  std::atomic<uint64_t> n_jobs{0};
  Gate gate;
  int64_t n_workers = 0;

  void live() {
    for (uint64_t n_seen = 0;;) {
      gate.wait([&] { return n_jobs != n_seen; });
      std::shared_ptr<Job> mine;
      {
        std::lock_guard<std::mutex> lock(mutex);
        n_seen = n_jobs, mine = job;
      }
      if (mine->n_seats-- > 0) mine->work();
    }
  }

public:
  void run(std::shared_ptr<Job> wanted, int64_t n_threads) {
    wanted->n_seats = n_threads - 1;
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (; n_workers < n_threads - 1; ++n_workers) std::thread([this] { live(); }).detach();
      job = wanted, ++n_jobs;
    }
    gate.announce();
    wanted->work();
  }
};

// The pool is never taken down: its threads sleep until the process ends.
inline Pool &pool() {
  static Pool &only = *new Pool;
  return only;
}

// A job on the pool, or on this thread where the pool would not help. A worker that comes late may still hold the job
// when `run` has returned, but then finds no task left in it.
class Phases {
  std::shared_ptr<Job> job = std::make_shared<Job>();

public:
  void add(int64_t count, std::function<void(int64_t)> work) { job->add(count, std::move(work)); }
  void run(int64_t n_threads) {
    if (n_threads > 1 && job->most > 1)
      pool().run(job, n_threads);
    else
      job->work();
  }
};

}  // namespace
