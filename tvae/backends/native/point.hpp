// A data point: the error and log-joint of a state given mu(z), and which of its states matter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "rows.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

template <class T> class Point {
  const EStepTask *task;
  int64_t n_outputs, n_observed;
  double precision;  // 1 / sigma2
  double log_scale;  // D log(2 pi sigma2) for the observed D
  Array<T> x, mask;  // in whole vectors, zeros behind; mask: 1 where observed

public:
  void prepare(const EStepTask &task, int64_t mu_stride) {
    this->task = &task, precision = 1 / task.sigma2;
    n_outputs = task.decoder.sizes[task.decoder.n_layers];
    x.assign(mu_stride, T(0)), mask.assign(mu_stride, T(0));
  }

  void read(int64_t which) {
    std::copy_n(static_cast<const T *>(task->x) + which * n_outputs, n_outputs, x.data());
    n_observed = n_outputs;
    if (task->observed) {
      const uint8_t *observed = task->observed + which * n_outputs;
      std::copy_n(observed, n_outputs, mask.data());
      n_observed = std::count(observed, observed + n_outputs, 1);
    }
    log_scale = n_observed * std::log(2 * 3.14159265358979323846 * task->sigma2);
  }

  int64_t count_observed() const { return n_observed; }

  T error(const T *mu) const {
    Vec<T> sum{};
    if (task->observed)
      for (int64_t i = 0; i < n_outputs; i += WIDTH<T>) {
        const Vec<T> difference = (vec(mu + i) - vec(&x[i])) * vec(&mask[i]);
        sum += difference * difference;
      }
    else
      for (int64_t i = 0; i < n_outputs; i += WIDTH<T>) {
        const Vec<T> difference = vec(mu + i) - vec(&x[i]);
        sum += difference * difference;
      }
    return sum_of<T>(sum);
  }

  T log_joint(double log_prior, T error) const { return log_prior - 0.5 * (error * precision + log_scale); }
};

// The states of a data point that matter, and its share of what is summed up.
template <class T> struct Significant {
  Array<uint8_t> packed;  // (R, n_bytes)
  Array<T> weight, mu;    // (R,), (R, mu_stride)
  Array<T> mean;          // (D,): Eq. (15), if it is wanted
  double elbo, error;     // F_n, and the error expected under q
  double imputed_error;   // the same of missing values at their posterior mean, if it is wanted
  int64_t n_observed;     // values

  void clear() { packed.clear(), weight.clear(), mu.clear(); }
  void add(const uint8_t *state, int64_t n_bytes, T share, const T *its_mu, int64_t mu_stride) {
    packed.insert(packed.end(), state, state + n_bytes);
    mu.insert(mu.end(), its_mu, its_mu + mu_stride);
    weight.push_back(share);
  }

  void measure_imputed(const uint8_t *observed, int64_t n_outputs) {
    const int64_t count = weight.size(), mu_stride = count ? mu.size() / count : 0;
    mean.assign(n_outputs, T(0));
    for (int64_t r = 0; r < count; ++r) add_row(mean.data(), weight[r], &mu[r * mu_stride], mean.data(), n_outputs);
    imputed_error = 0;
    for (int64_t r = 0; r < count; ++r) {
      T sum = 0;
      for (int64_t d = 0; d < n_outputs; ++d) {
        const T difference = (mu[r * mu_stride + d] - mean[d]) * T(!observed[d]);
        sum += difference * difference;
      }
      imputed_error += double(weight[r]) * sum;
    }
  }
};

}  // namespace
