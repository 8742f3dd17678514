// The prior: log p(z) = log_off + the sum of the logits of the latents that are on.
#pragma once

#include <cmath>
#include <cstdint>

#include "tasks.hpp"
#include "vectors.hpp"

namespace {

template <class T> struct Prior {
  Array<T> logit;  // (H,)
  double log_off;  // log p(z = 0)

  void prepare(const EStepTask &task) {
    const T *pi = static_cast<const T *>(task.pi);
    logit.resize(task.n_latents), log_off = 0;
    for (int64_t h = 0; h < task.n_latents; ++h) {
      logit[h] = std::log(pi[h] / (1 - pi[h]));
      log_off += std::log1p(-pi[h]);
    }
  }
};

}  // namespace
