// The gradient of the decoder's loss for linear decoders and ReLU, whose derivative is one where its value is not zero.
//
//     loss = scale / 2 sum_r weight_r |x_point(r) - mu(z_r)|^2
//
// Missing values are left out, or replaced by their posterior mean, which is held fixed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activations.hpp"
#include "backward.hpp"
#include "layers.hpp"
#include "products.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

template <class T> class Gradient {
  const GradientTask &task;
  const std::vector<Layer<T>> &layers;
  const int64_t n_rows, n_bytes, n_outputs, mu_stride, width, stride, n_words;
  static constexpr int64_t ROWS = 16, UNITS = 16, NEAR_ROWS = 32;  // that a thread takes, and reads, at a time
  Array<T> &value;  // (n_layers, R, stride): each layer's sums, then its values; the last layer's gradients
  Array<T> &slope;  // (n_layers - 1, R, stride): gradients of the hidden layers' sums
  Array<Word> &on;  // (n_layers - 1, R, n_words): which values are not zero

  T *values(int64_t layer, int64_t row) { return value.data() + (layer * n_rows + row) * stride; }
  T *slopes(int64_t layer, int64_t row) {
    return layer + 1 == task.decoder.n_layers ? values(layer, row) : slope.data() + (layer * n_rows + row) * stride;
  }
  Word *ones(int64_t layer, int64_t row) { return on.data() + (layer * n_rows + row) * n_words; }

public:
  struct Memory {
    Array<T> value, slope;
    Array<Word> on;
  };

  Gradient(const GradientTask &task, const std::vector<Layer<T>> &layers, Memory &memory)
      : task(task), layers(layers), n_rows(task.n_rows), n_bytes((task.n_latents + 7) / 8),
        n_outputs(task.decoder.sizes[task.decoder.n_layers]), mu_stride(output_stride(task.decoder, layers)),
        width(widest(task.decoder, layers)), stride(stride_for<T>(width)), n_words(width / 64), value(memory.value),
        slope(memory.slope), on(memory.on) {
    const int64_t n_hidden = layers.size();
    make_room(value, (n_hidden + 1) * n_rows * stride), make_room(slope, n_hidden * n_rows * stride);
    make_room(on, n_hidden * n_rows * n_words);
  }

  // The layers' weights have to be packed.
  void add_to(Phases &phases) {
    const int64_t n_hidden = layers.size(), n_first = task.decoder.sizes[1];
    phases.add((n_rows + ROWS - 1) / ROWS,
               [this](int64_t part) { forward(part * ROWS, std::min(n_rows, (part + 1) * ROWS)); });
    if (task.observed && task.imputes)
      phases.add((n_rows + ROWS - 1) / ROWS,
                 [this](int64_t part) { impute(part * ROWS, std::min(n_rows, (part + 1) * ROWS)); });
    for (int64_t i = n_hidden; i > 0; --i)
      phases.add((layers[i - 1].n_in + UNITS - 1) / UNITS, [this, i](int64_t part) {
        backward(i, part * UNITS, std::min(layers[i - 1].n_in, (part + 1) * UNITS));
      });
    phases.add(1, [this](int64_t) { add_last_bias(); });
    multiply_transposed(phases, task.packed, slopes(0, 0), stride, static_cast<T *>(task.weight_gradients[0]), n_rows,
                        task.n_latents, n_first);
  }

private:
  // Rows [first, end): values of all layers, and the gradient of the outputs, if nothing is to be imputed first.
  void forward(int64_t first, int64_t end) {
    std::vector<int32_t> list(8 * n_bytes);
    const Network &net = task.decoder;
    const bool is_known = task.mu;
    for (int64_t r = first; r < end && !(is_known && layers.empty()); ++r) {
      const int64_t n_ones = list_ones(task.packed + r * n_bytes, n_bytes, list.data());
      sum_rows(static_cast<const T *>(net.biases[0]), static_cast<const T *>(net.weights[0]), net.sizes[1], list.data(),
               n_ones, values(0, r));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      for (int64_t r = first; r < end; ++r) activate(RELU, values(i, r), ones(i, r), layers[i].n_in);
      if (!is_known || i + 1 < layers.size())
        layers[i].apply(end - first, ones(i, first), n_words, values(i, first), stride, values(i + 1, first), stride);
    }
    if (!(task.observed && task.imputes))
      for (int64_t r = first; r < end; ++r) differentiate(r, x_of(r), observed_of(r));
  }

  T weight_of(int64_t r) { return static_cast<const T *>(task.weight)[r]; }
  const T *x_of(int64_t r) { return static_cast<const T *>(task.x) + task.point[r] * n_outputs; }
  const uint8_t *observed_of(int64_t r) { return task.observed ? task.observed + task.point[r] * n_outputs : nullptr; }
  const T *mu_of(int64_t r) { return task.mu ? static_cast<const T *>(task.mu[r]) : values(layers.size(), r); }

  // The gradients of the outputs for all data points whose first row is in [first, end), as if nothing were missing.
  void impute(int64_t first, int64_t end) {
    Array<T> x(n_outputs);
    for (int64_t r = first; r < end; ++r) {
      if (r > 0 && task.point[r] == task.point[r - 1]) continue;
      int64_t next = r;
      while (next < n_rows && task.point[next] == task.point[r]) ++next;
      const uint8_t *observed = observed_of(r);
      for (int64_t d = 0; d < n_outputs; ++d) {
        x[d] = observed[d] ? x_of(r)[d] : T(0);
        for (int64_t s = r; s < next && !observed[d]; ++s) x[d] += weight_of(s) * mu_of(s)[d];  // Eq. (15)
      }
      for (int64_t s = r; s < next; ++s) differentiate(s, x.data(), nullptr);
    }
  }

  // The gradient of row r's outputs; overwrites mu if that was computed here.
  void differentiate(int64_t r, const T *x, const uint8_t *observed) {
    T *difference = values(layers.size(), r);
    const T factor = weight_of(r) * task.scale;
    add_row(mu_of(r), T(-1), x, difference, n_outputs);
    for (int64_t d = 0; d < n_outputs; ++d) difference[d] *= factor;
    if (observed)
      for (int64_t d = 0; d < n_outputs; ++d) difference[d] *= observed[d];
    std::fill(difference + n_outputs, difference + mu_stride, T(0));
  }

  // Units [first, end) of the layer below layer i: gradients of their outgoing weights, their sums and their biases.
  void backward(int64_t i, int64_t first, int64_t end) {
    const Layer<T> &layer = layers[i - 1];
    const int64_t n_columns = layer.n_columns();
    Array<T> sums(UNITS * n_columns);
    for (int64_t r = 0; r < n_rows; r += NEAR_ROWS) {
      const int64_t count = std::min(NEAR_ROWS, n_rows - r);
      clear_slopes(i - 1, r, count, first, end);
      for (int64_t k = first; k < end; ++k) {
        Word rows = 0;  // of these, where the unit is on
        for (int64_t j = 0; j < count; ++j) rows |= (ones(i - 1, r + j)[k / 64] >> k % 64 & 1) << j;
        for (int64_t which = 0; which < layer.n_panels; ++which) {
          const int64_t column = which * layer.panel_size();
          ADD_SLOPES<T>[layer.panel](rows, stride, layer.packed_row(which, k), values(i - 1, r) + k,
                                     slopes(i, r) + column, &sums[(k - first) * n_columns + column],
                                     slopes(i - 1, r) + k);
        }
      }
    }
    T *gradient = static_cast<T *>(task.weight_gradients[i]), *bias = static_cast<T *>(task.bias_gradients[i - 1]);
    for (int64_t k = first; k < end; ++k)
      std::copy_n(&sums[(k - first) * n_columns], layer.n_out, gradient + k * layer.n_out);
    std::fill(bias + first, bias + end, T(0));
    for (int64_t r = 0; r < n_rows; ++r)
      add_row(bias + first, T(1), slopes(i - 1, r) + first, bias + first, end - first);
  }

  // Also those behind the last unit, up to whole vectors, as a layer reads them.
  void clear_slopes(int64_t layer, int64_t row, int64_t count, int64_t first, int64_t end) {
    const int64_t to = end == layers[layer].n_in ? width : end;
    for (int64_t r = row; r < row + count; ++r) std::fill(slopes(layer, r) + first, slopes(layer, r) + to, T(0));
  }

  void add_last_bias() {
    T *last = static_cast<T *>(task.bias_gradients[layers.size()]);
    std::fill_n(last, n_outputs, T(0));
    for (int64_t r = 0; r < n_rows; ++r) add_row(last, T(1), slopes(layers.size(), r), last, n_outputs);
  }
};

// Memory that a thread keeps from call to call.
template <class T> typename Gradient<T>::Memory &gradient_memory() {
  static thread_local typename Gradient<T>::Memory memory;
  return memory;
}

template <class T> void run_gradient(const GradientTask &task) {
  const auto layers = hidden_layers<T>(task.decoder);
  Phases phases;
  add_packing(phases, layers);
  Gradient<T> gradient(task, layers, gradient_memory<T>());
  gradient.add_to(phases);
  phases.run(task.n_threads);
}

}  // namespace
