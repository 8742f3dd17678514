// The visit of a minibatch: E-step, what is summed up over an epoch, and the decoder's gradient; several with Adam.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "adam.hpp"
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
  Array<int64_t> first;  // (B + 1,): where those of each data point begin, and their number
  Array<int64_t> point;
  Array<uint8_t> packed;
  Array<T> weight;
  Array<const void *> mu;

public:
  void prepare(int64_t batch) { of_points.resize(batch), first.assign(batch + 1, 0); }
  Significant<T> &operator[](int64_t which) { return of_points[which]; }

  // Room for what `add_to` will copy.
  GradientTask gradient_task(const VisitTask &task) {
    const EStepTask &search = task.search;
    const int64_t batch = of_points.size();
    for (int64_t n = 0; n < batch; ++n) first[n + 1] = first[n] + of_points[n].weight.size();
    const int64_t n_rows = first[batch];
    make_room(point, n_rows), make_room(weight, n_rows), make_room(mu, n_rows);
    make_room(packed, n_rows * bytes_of(search));
    return {search.decoder, n_rows, search.n_latents, search.n_threads, task.imputes, task.scale, point.data(),
            packed.data(), weight.data(), mu.data(), search.x, search.observed, task.weight_gradients,
            task.bias_gradients};
  }

  // Copy the rows of every data point, and meanwhile add up what an epoch sums.
  void add_to(Phases &phases, VisitTask &task) {
    phases.add(1 + of_points.size(), [this, &task](int64_t part) {
      if (part == 0)
        sum_up(task);
      else
        copy(part - 1, bytes_of(task.search));
    });
  }

private:
  static int64_t bytes_of(const EStepTask &search) { return (search.n_latents + 7) / 8; }

  void copy(int64_t n, int64_t n_bytes) {
    const Significant<T> &its = of_points[n];
    const int64_t to = first[n], count = its.weight.size(), mu_stride = count ? its.mu.size() / count : 0;
    std::copy(its.packed.begin(), its.packed.end(), packed.begin() + to * n_bytes);
    std::copy(its.weight.begin(), its.weight.end(), weight.begin() + to);
    for (int64_t r = 0; r < count; ++r) point[to + r] = n, mu[to + r] = its.mu.data() + r * mu_stride;
  }

  // In the order of the data points.
  void sum_up(VisitTask &task) {
    const EStepTask &search = task.search;
    const int64_t n_bytes = bytes_of(search);
    std::vector<int32_t> ones(8 * n_bytes);
    for (int64_t n = 0; n < search.batch; ++n) {
      const Significant<T> &its = of_points[n];
      *task.n_points += 1, *task.n_accepted += search.n_accepted[n], *task.n_observed += its.n_observed;
      *task.elbo += its.elbo, *task.error += its.error;
      if (task.imputed_error) *task.imputed_error += its.imputed_error;
      for (size_t r = 0; r < its.weight.size(); ++r) {
        const int64_t n_ones = list_ones(its.packed.data() + r * n_bytes, n_bytes, ones.data());
        for (int64_t i = 0; i < n_ones; ++i) task.active[ones[i]] += its.weight[r];
      }
    }
  }
};

// Two jobs to the pool, for how many states matter is known when the first is done. `then` adds phases to the second.
template <class T>
void run_visit(VisitTask &task, std::function<void(Phases &)> then = [](Phases &) {}) {
  static thread_local Rows<T> memory;
  Rows<T> &rows = memory;
  rows.prepare(task.search.batch);
  const auto layers = hidden_layers<T>(task.search.decoder);
  const int64_t n_outputs = task.search.decoder.sizes[task.search.decoder.n_layers];
  Phases search;
  add_e_step<T>(search, task.search, layers, [&](int64_t point, const Population<T> &found) {
    found.weigh(task.prune, rows[point]);
    if (task.imputed_error) rows[point].measure_imputed(task.search.observed + point * n_outputs, n_outputs);
  });
  search.run(task.search.n_threads);
  const GradientTask gradient_task = rows.gradient_task(task);
  Gradient<T> gradient(gradient_task, layers, gradient_memory<T>());
  Phases learn;
  rows.add_to(learn, task);
  gradient.add_to(learn);
  then(learn);
  learn.run(task.search.n_threads);
}

// Minibatches one after the other, each with its step of Adam.
template <class T> void run_stretch(StretchTask &task) {
  const EStepTask &all = task.visit.search;
  const int64_t n_outputs = all.decoder.sizes[all.decoder.n_layers], n_bytes = (all.n_latents + 7) / 8;
  for (int64_t step = 0, from = 0; from < all.batch; ++step, from += task.size) {
    VisitTask visit = task.visit;
    EStepTask &search = visit.search;
    search.batch = std::min(task.size, all.batch - from);
    visit.scale = 1 / (search.sigma2 * search.batch);
    if (search.index) search.index += from;
    search.n_accepted += from;
    search.x = static_cast<const T *>(search.x) + from * n_outputs;
    if (search.observed) search.observed += from * n_outputs;
    search.packed += from * search.n_states * n_bytes, search.new_packed += from * search.n_states * n_bytes;
    search.error = static_cast<T *>(search.error) + from * search.n_states;
    search.log_joint = static_cast<T *>(search.log_joint) + from * search.n_states;
    run_visit<T>(visit, [&](Phases &phases) { add_adam<T>(phases, task.adam, step); });
  }
}

}  // namespace
