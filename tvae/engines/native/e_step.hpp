// The E-step: for each data point generations of children, then the fittest of old and new states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "layers.hpp"
#include "population.hpp"
#include "random.hpp"
#include "selection.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

// The search for one data point at a time.
template <class T> class Search {
  const EStepTask *task;
  Population<T> population;
  Selector<T> selector;
  Array<int32_t> pool, parents;  // places of the last generation and of its members that breed
  Array<int64_t> flips;          // (P, C, n_flips)

public:
  void prepare(const EStepTask &task, const std::vector<Layer<T>> &layers) {
    this->task = &task;
    const int64_t n_bred = task.n_parents * task.n_children;
    pool.reserve(std::max(task.n_states, n_bred));
    parents.resize(task.n_parents), flips.resize(n_bred * task.n_flips);
    population.prepare(task, layers);
  }

  // Returns how many random numbers were drawn.
  int64_t run(int64_t point) {
    population.read(point);
    pool.resize(task->n_states);
    std::iota(pool.begin(), pool.end(), 0);
    const uint64_t n_drawn_before = task->n_drawn_before;
    Stream rng{task->index ? mix(task->index[point] * GOLDEN + task->seed) : 0, n_drawn_before};
    for (int64_t g = 0; g < task->n_generations; ++g) breed(rng);
    population.write(point);
    return rng.n_drawn - n_drawn_before;
  }

private:
  void breed(Stream &rng) {
    selector.select(static_cast<Selection>(task->selection), population.fitness, pool, parents, rng);
    const int64_t n_flips = task->n_flips, n_children = task->n_children;
    const int64_t at_once = n_flips == 1 ? n_children : n_flips;  // see core/evolution.py, draw_flips
    for (size_t i = 0; i < flips.size(); i += at_once) rng.distinct_integers(task->n_latents, at_once, &flips[i]);
    pool.clear();
    const int64_t *flip = flips.data();
    for (const int32_t parent : parents) {
      population.read_parent(parent);
      for (int64_t c = 0; c < n_children; ++c, flip += n_flips) pool.push_back(population.mutate(parent, flip));
    }
    population.evaluate();
  }
};

// Memory that a thread keeps from call to call. Inlined, its address would be looked up again at every use.
template <class T> __attribute__((noinline)) Search<T> &search_of_thread() {
  static thread_local Search<T> search;
  return search;
}

template <class T> void run_e_step(EStepTask &task) {
  const auto layers = hidden_layers<T>(task.decoder);
  Phases phases;
  for (const auto &layer : layers) phases.add(layer.n_panels, [&](int64_t panel) { layer.pack(panel); });
  phases.add(task.batch, [&](int64_t point) {
    Search<T> &search = search_of_thread<T>();
    search.prepare(task, layers);
    const int64_t n_drawn = search.run(point);
    if (point == 0) task.n_drawn = n_drawn;
  });
  phases.run(task.n_threads);
}

}  // namespace
