// From a state's first sums (what the first layer adds up) to its error and log-joint, for one data point at a time.
//
// The output layer starts from its bias minus x instead of its bias, so that what comes out is mu(z) - x.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "activations.hpp"
#include "layers.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

constexpr int BLOCK = 64;  // states that share a pass over a layer's weights

inline bool is_on(const uint8_t *state, int64_t latent) { return state[latent / 8] >> latent % 8 & 1; }

template <class T> class Evaluation {
  const EStepTask *task;
  const std::vector<Layer<T>> *layers;  // behind the first
  const T *weight, *bias;               // of the first layer
  int64_t n_first, n_outputs, n_words, stride;
  double log_scale;              // D log(2 pi sigma2) for the observed D
  Array<T> parent, start, mask;  // a parent's first sums; bias - x; 1 where observed
  Array<T> value[2];             // (BLOCK, stride): a layer's inputs and outputs
  Array<Word> on;                // (BLOCK, n_words): which inputs are not zero

public:
  void prepare(const EStepTask &task, const std::vector<Layer<T>> &layers) {
    this->task = &task, this->layers = &layers;
    weight = static_cast<const T *>(task.decoder.weights[0]);
    n_first = task.decoder.sizes[1], n_outputs = task.decoder.sizes[task.decoder.n_layers];
    const int64_t width = widest(task.decoder, layers);
    n_words = width / 64, stride = stride_for<T>(width);
    for (auto *array : {&parent, &start, &mask}) array->resize(width);
    for (auto &array : value) array.resize(BLOCK * stride);
    on.resize(BLOCK * n_words);
    bias = layers.empty() ? start.data() : static_cast<const T *>(task.decoder.biases[0]);
  }

  void read_point(int64_t point) {
    const T *x = static_cast<const T *>(task->x) + point * n_outputs;
    const T *bias = static_cast<const T *>(task->decoder.biases[task->decoder.n_layers - 1]);
    for (int64_t i = 0; i < n_outputs; ++i) start[i] = bias[i] - x[i];
    int64_t n_observed = n_outputs;
    if (task->observed) {
      const uint8_t *observed = task->observed + point * n_outputs;
      std::copy_n(observed, n_outputs, mask.data());
      n_observed = std::count(observed, observed + n_outputs, 1);
    }
    log_scale = n_observed * std::log(2 * 3.14159265358979323846 * task->sigma2);
  }

  // Where the first sums of state s of a block go.
  T *first_sums(int64_t s) { return value[0].data() + s * stride; }

  void sum_first(const int32_t *ones, int64_t n_ones, T *out) const {
    sum_rows(bias, weight, n_first, ones, n_ones, out);
  }
  void read_parent(const int32_t *ones, int64_t n_ones) { sum_first(ones, n_ones, parent.data()); }

  // First sums of a child of the parent read last: each flip adds or subtracts a row of weights.
  void inherit(const uint8_t *child, const int64_t *flips, T *sums) const {
    for (int64_t i = 0; i < task->n_flips; ++i) {
      const T sign = is_on(child, flips[i]) ? 1 : -1;
      add_row(i == 0 ? parent.data() : sums, sign, weight + flips[i] * n_first, sums, n_first);
    }
  }

  // Errors and log-joints of the first `count` states of the block.
  void evaluate(int64_t count, const double *log_prior, T *error, T *log_joint) {
    T *in = value[0].data(), *out = value[1].data();
    for (const auto &layer : *layers) {
      const T *from = &layer == &layers->back() ? start.data() : layer.bias;
      for (int64_t s = 0; s < count; ++s) {
        activate(static_cast<Activation>(task->decoder.activation), in + s * stride, &on[s * n_words], layer.n_in);
        std::copy_n(from, layer.n_out, out + s * stride);
      }
      layer.apply(count, on.data(), n_words, in, out, stride);
      std::swap(in, out);
    }
    for (int64_t s = 0; s < count; ++s) {
      error[s] = squared(in + s * stride);
      log_joint[s] = log_prior[s] - 0.5 * (error[s] / task->sigma2 + log_scale);
    }
  }

private:
  T squared(T *difference) const {
    if (task->observed)
      for (int64_t i = 0; i < n_outputs; ++i) difference[i] *= mask[i];
    std::fill(difference + n_outputs, difference + round_up(n_outputs, WIDTH<T>), T(0));
    Vec<T> sum{};
    for (int64_t i = 0; i < n_outputs; i += WIDTH<T>) sum += vec(difference + i) * vec(difference + i);
    T total = 0;
    for (int j = 0; j < WIDTH<T>; ++j) total += sum[j];
    return total;
  }
};

}  // namespace
