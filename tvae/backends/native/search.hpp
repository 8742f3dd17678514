// The search for one data point: generations of children, then the fittest of old and new states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "known_states.hpp"
#include "layers.hpp"
#include "population.hpp"
#include "random.hpp"
#include "selection.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

template <class T> class Search {
  const EStepTask *task;
  Selector<T> selector;
  Stream rng;
  Array<int32_t> pool, parents;  // places of the last generation and of its members that breed
  Array<int64_t> flips;          // (P, C, n_flips)

public:
  Population<T> population;

  void prepare(const EStepTask &task, const std::vector<Layer<T>> &layers, KnownStates<T> &known) {
    this->task = &task;
    const int64_t n_bred = task.n_parents * task.n_children;
    pool.reserve(std::max(task.n_states, n_bred));
    parents.resize(task.n_parents), flips.resize(n_bred * task.n_flips);
    population.prepare(task, layers, known);
  }

  // With the old states, which are known from `place` on.
  void begin(int64_t point, int64_t place) {
    population.read(point, place);
    pool.resize(task->n_states);
    std::iota(pool.begin(), pool.end(), 0);
    const uint64_t n_drawn_before = task->n_drawn_before;
    rng = {task->index ? mix(task->index[point] * GOLDEN + task->seed) : 0, n_drawn_before};
  }

  // The next generation. `batch`: of the last generation of the whole minibatch, for AUTHORS.
  void breed(const Spread &batch = {}) {
    selector.select(static_cast<Selection>(task->selection), population.fitness, pool, batch, parents, rng);
    const int64_t n_flips = task->n_flips, n_children = task->n_children;
    const int64_t at_once = n_flips == 1 ? n_children : n_flips;  // see inference/evolution.py, draw_flips
    for (size_t i = 0; i < flips.size(); i += at_once) rng.distinct_integers(task->n_latents, at_once, &flips[i]);
    pool.clear();
    const int64_t *flip = flips.data();
    for (const int32_t parent : parents)
      for (int64_t c = 0; c < n_children; ++c, flip += n_flips) pool.push_back(population.mutate(parent, flip));
    population.evaluate();
  }

  // Of the last generation.
  Spread spread() const { return spread_of(population.fitness, pool); }

  // Keep the fittest. Returns how many random numbers were drawn.
  int64_t end(int64_t point) {
    population.write(point);
    return rng.n_drawn - task->n_drawn_before;
  }
};

// Memory that a thread keeps from call to call, see decoding_of_thread.
template <class T> __attribute__((noinline)) Search<T> &search_of_thread() {
  static thread_local Search<T> search;
  return search;
}

}  // namespace
