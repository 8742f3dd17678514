// The E-step: for each data point generations of children, then the fittest of old and new states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "decoding.hpp"
#include "known_states.hpp"
#include "layers.hpp"
#include "population.hpp"
#include "random.hpp"
#include "selection.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

constexpr int64_t STATES_AT_ONCE = 1 << 13;  // whose mu is kept, if that is at least one data point

// The search for one data point at a time.
template <class T> class Search {
  const EStepTask *task;
  Selector<T> selector;
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

  // Returns how many random numbers were drawn. The old states are known from `place` on.
  int64_t run(int64_t point, int64_t place) {
    population.read(point, place);
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
    for (const int32_t parent : parents)
      for (int64_t c = 0; c < n_children; ++c, flip += n_flips) pool.push_back(population.mutate(parent, flip));
    population.evaluate();
  }
};

// Memory that a thread keeps from call to call, see decoding_of_thread.
template <class T> __attribute__((noinline)) Search<T> &search_of_thread() {
  static thread_local Search<T> search;
  return search;
}

// Add the phases of the E-step. `done` is called with each data point and its states.
template <class T>
void add_e_step(Phases &phases, EStepTask &task, const std::vector<Layer<T>> &layers,
                std::function<void(int64_t, const Population<T> &)> done) {
  static thread_local KnownStates<T> memory;
  KnownStates<T> &known = memory;
  const int64_t n_states = task.n_states, n_bytes = (task.n_latents + 7) / 8;
  const int64_t at_once = std::clamp<int64_t>(STATES_AT_ONCE / n_states, 1, task.batch);
  known.prepare(task, at_once * n_states, output_stride(task.decoder, layers));
  add_packing(phases, layers);
  for (int64_t first = 0; first < task.batch; first += at_once) {
    const int64_t n_points = std::min(at_once, task.batch - first);
    const uint8_t *packed = task.packed + first * n_states * n_bytes;
    phases.add(1, [&known](int64_t) { known.forget(); });
    phases.add(n_points, [=, &known](int64_t point) {
      std::vector<int32_t> ones(8 * n_bytes);
      known.enter(point * n_states, n_states, packed + point * n_states * n_bytes, ones.data());
    });
    phases.add((n_points * n_states + BLOCK - 1) / BLOCK, [&known, &task, &layers](int64_t block) {
      const int64_t row = block * BLOCK, count = std::min(BLOCK, known.n_rows() - row);
      if (count <= 0) return;
      Decoding<T> &decoding = decoding_of_thread<T>();
      decoding.prepare(task.decoder, layers);
      decoding.decode(count, [&](int64_t i) { return known.state(row + i); }, known.mu_row(row));
    });
    phases.add(n_points, [=, &known, &task, &layers](int64_t point) {
      Search<T> &search = search_of_thread<T>();
      search.prepare(task, layers, known);
      const int64_t n_drawn = search.run(first + point, point * n_states);
      if (first + point == 0) task.n_drawn = n_drawn;
      done(first + point, search.population);
    });
  }
}

template <class T> void run_e_step(EStepTask &task) {
  const auto layers = hidden_layers<T>(task.decoder);
  Phases phases;
  add_e_step<T>(phases, task, layers, [](int64_t, const Population<T> &) {});
  phases.run(task.n_threads);
}

}  // namespace
