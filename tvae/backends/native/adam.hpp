// A step of Adam, the t-th, in one pass over memory; adam.py has the formulas.
//
//     rate = learning rate / (1 - beta1^t),   root = sqrt(1 - beta2^t)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tasks.hpp"
#include "threads.hpp"

namespace {

template <class T> void add_adam(Phases &phases, const AdamTask &task, int64_t step) {
  constexpr int64_t at_once = 1 << 14;
  const T rate = task.rates[step], root = task.roots[step];
  const T beta1 = task.beta1, beta2 = task.beta2, epsilon = task.epsilon;
  std::vector<std::pair<int64_t, int64_t>> parts;  // parameter, first element
  for (int64_t p = 0; p < task.n_parameters; ++p)
    for (int64_t start = 0; start < task.sizes[p]; start += at_once) parts.emplace_back(p, start);
  const int64_t n_parts = parts.size();
  // The numbers are copied: by reference they would be read again at every step.
  phases.add(n_parts, [=, parts = std::move(parts), &task](int64_t part) {
    const auto [p, start] = parts[part];
    T *__restrict parameter = static_cast<T *>(task.parameters[p]);
    const T *__restrict gradient = static_cast<const T *>(task.gradients[p]);
    T *__restrict mean = static_cast<T *>(task.means[p]), *__restrict square = static_cast<T *>(task.squares[p]);
    const int64_t end = std::min(task.sizes[p], start + at_once);
    for (int64_t i = start; i < end; ++i) {
      mean[i] += (1 - beta1) * (gradient[i] - mean[i]);
      square[i] = beta2 * square[i] + (1 - beta2) * gradient[i] * gradient[i];
      parameter[i] -= rate * mean[i] / (std::sqrt(square[i]) / root + epsilon);
    }
  });
}

template <class T> void run_adam(const AdamTask &task) {
  Phases phases;
  add_adam<T>(phases, task, 0);
  phases.run(task.n_threads);
}

}  // namespace
