// The E-step: for each data point generations of children, then the fittest of old and new states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "decoding.hpp"
#include "known_states.hpp"
#include "layers.hpp"
#include "population.hpp"
#include "search.hpp"
#include "selection.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

constexpr int64_t STATES_AT_ONCE = 1 << 13;  // whose mu is kept, if that is at least one data point

template <class T> using Done = std::function<void(int64_t, const Population<T> &)>;

// Searches generation by generation, for a selection that looks at the whole minibatch.
template <class T> class JointSearch {
  std::vector<Search<T>> searches;  // of each data point
  std::vector<Spread> spreads;      // (n_generations + 1, batch)

public:
  void add_to(Phases &phases, EStepTask &task, const std::vector<Layer<T>> &layers, KnownStates<T> &known,
              Done<T> done) {
    const int64_t batch = task.batch;
    searches.resize(std::max<int64_t>(searches.size(), batch));
    spreads.assign((task.n_generations + 1) * batch, {});
    phases.add(batch, [this, &task, &layers, &known](int64_t point) {
      searches[point].prepare(task, layers, known);
      searches[point].begin(point, point * task.n_states);
      spreads[point] = searches[point].spread();
    });
    for (int64_t g = 0; g < task.n_generations; ++g)
      phases.add(batch, [this, batch, g, &layers](int64_t point) {
        Spread all;  // added up in the order of the data points
        for (int64_t n = 0; n < batch; ++n) all.add(spreads[g * batch + n]);
        searches[point].population.decode_here(layers);
        searches[point].breed(all);
        spreads[(g + 1) * batch + point] = searches[point].spread();
      });
    phases.add(batch, [this, done, &task](int64_t point) {
      const int64_t n_drawn = searches[point].end(point);
      if (point == 0) task.n_drawn = n_drawn;
      done(point, searches[point].population);
    });
  }
};

// Each data point by itself, from its first generation to its last.
template <class T>
void add_searches(Phases &phases, int64_t first, int64_t n_points, EStepTask &task,
                  const std::vector<Layer<T>> &layers, KnownStates<T> &known, Done<T> done) {
  phases.add(n_points, [=, &known, &task, &layers](int64_t point) {
    Search<T> &search = search_of_thread<T>();
    search.prepare(task, layers, known);
    search.begin(first + point, point * task.n_states);
    for (int64_t g = 0; g < task.n_generations; ++g) search.breed();
    const int64_t n_drawn = search.end(first + point);
    if (first + point == 0) task.n_drawn = n_drawn;
    done(first + point, search.population);
  });
}

// Add the phases of the E-step. `done` is called with each data point and its states.
template <class T>
void add_e_step(Phases &phases, EStepTask &task, const std::vector<Layer<T>> &layers, Done<T> done) {
  static thread_local KnownStates<T> memory;
  static thread_local JointSearch<T> joint_memory;
  KnownStates<T> &known = memory;
  const bool is_joint = task.selection == AUTHORS;
  const int64_t n_states = task.n_states, n_bytes = (task.n_latents + 7) / 8;
  const int64_t at_once = is_joint ? task.batch : std::clamp<int64_t>(STATES_AT_ONCE / n_states, 1, task.batch);
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
    if (is_joint)
      joint_memory.add_to(phases, task, layers, known, done);
    else
      add_searches<T>(phases, first, n_points, task, layers, known, done);
  }
}

template <class T> void run_e_step(EStepTask &task) {
  const auto layers = hidden_layers<T>(task.decoder);
  Phases phases;
  add_e_step<T>(phases, task, layers, [](int64_t, const Population<T> &) {});
  phases.run(task.n_threads);
}

}  // namespace
