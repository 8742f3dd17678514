// The visit of a minibatch: E-step, what is summed up over an epoch, and the decoder's gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "e_step.hpp"
#include "gradient.hpp"
#include "layers.hpp"
#include "point.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

// The states that matter of all data points, one after the other.
template <class T> class Rows {
  std::vector<Significant<T>> of_points;
  Array<int64_t> point;
  Array<uint8_t> packed;
  Array<T> weight;
  Array<const void *> mu;

public:
  void prepare(int64_t batch) { of_points.resize(batch); }
  Significant<T> &operator[](int64_t which) { return of_points[which]; }

  // Sums in the order of the data points.
  void sum_up(VisitTask &task) {
    const EStepTask &search = task.search;
    const int64_t n_bytes = (search.n_latents + 7) / 8;
    point.clear(), packed.clear(), weight.clear(), mu.clear();
    std::vector<int32_t> ones(8 * n_bytes);
    for (int64_t n = 0; n < search.batch; ++n) {
      const Significant<T> &its = of_points[n];
      *task.n_points += 1, *task.n_accepted += search.n_accepted[n], *task.n_observed += its.n_observed;
      *task.elbo += its.elbo, *task.error += its.error;
      const int64_t count = its.weight.size();
      point.insert(point.end(), count, n);
      packed.insert(packed.end(), its.packed.begin(), its.packed.end());
      weight.insert(weight.end(), its.weight.begin(), its.weight.end());
      for (int64_t r = 0; r < count; ++r) {
        mu.push_back(its.mu.data() + r * (its.mu.size() / count));
        const int64_t n_ones = list_ones(its.packed.data() + r * n_bytes, n_bytes, ones.data());
        for (int64_t i = 0; i < n_ones; ++i) task.active[ones[i]] += its.weight[r];
      }
    }
  }

  GradientTask gradient_task(const VisitTask &task) const {
    const EStepTask &search = task.search;
    return {search.decoder, static_cast<int64_t>(weight.size()), search.n_latents, search.n_threads, task.scale,
            point.data(), packed.data(), weight.data(), mu.data(), search.x, search.observed, task.weight_gradients,
            task.bias_gradients};
  }
};

// All of it is one job to the pool but for the sums, which take microseconds.
template <class T> void run_visit(VisitTask &task) {
  static thread_local Rows<T> memory;
  Rows<T> &rows = memory;
  rows.prepare(task.search.batch);
  const auto layers = hidden_layers<T>(task.search.decoder);
  Phases search;
  add_e_step<T>(search, task.search, layers,
                [&](int64_t point, const Population<T> &found) { found.weigh(task.prune, rows[point]); });
  search.run(task.search.n_threads);
  rows.sum_up(task);
  const GradientTask gradient_task = rows.gradient_task(task);
  Gradient<T> gradient(gradient_task, layers, gradient_memory<T>());
  Phases learn;
  gradient.add_to(learn);
  learn.run(task.search.n_threads);
}

}  // namespace
