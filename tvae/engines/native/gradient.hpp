// The gradient of the decoder's loss for linear decoders and ReLU, whose derivative is one where its value is not zero.
//
//     loss = scale / 2 sum_r weight_r |x_point(r) - mu(z_r)|^2
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activations.hpp"
#include "layers.hpp"
#include "products.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

template <class T> T dot(const T *a, const T *b, int64_t size) {
  constexpr int64_t W = WIDTH<T>;
  Vec<T> sum[4]{};
  T total = 0;
  int64_t i = 0;
  for (; i + 4 * W <= size; i += 4 * W)
    for (int j = 0; j < 4; ++j) sum[j] += vec(a + i + j * W) * vec(b + i + j * W);
  for (; i + W <= size; i += W) sum[0] += vec(a + i) * vec(b + i);
  for (; i < size; ++i) total += a[i] * b[i];
  sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (int j = 0; j < W; ++j) total += sum[0][j];
  return total;
}

template <class T> class Backward {
  const GradientTask &task;
  const std::vector<Layer<T>> layers;
  const int64_t n_rows, n_bytes, n_outputs, width, stride, n_words;
  static constexpr int64_t ROWS = 16, UNITS = 16;  // that a thread takes at a time
  Array<T> &value;  // (n_layers, R, stride): each layer's sums, then its values; the last layer's gradients
  Array<T> &slope;  // (n_layers - 1, R, stride): gradients of the hidden layers' sums
  Array<Word> &on;  // (n_layers - 1, R, n_words): which values are not zero

  T *values(int64_t layer, int64_t row) { return value.data() + (layer * n_rows + row) * stride; }
  T *slopes(int64_t layer, int64_t row) {
    return layer + 1 == task.decoder.n_layers ? values(layer, row) : slope.data() + (layer * n_rows + row) * stride;
  }
  Word *ones(int64_t layer, int64_t row) { return on.data() + (layer * n_rows + row) * n_words; }

public:
  Backward(const GradientTask &task, Array<T> &value, Array<T> &slope, Array<Word> &on)
      : task(task), layers(hidden_layers<T>(task.decoder)), n_rows(task.n_rows),
        n_bytes((task.n_latents + 7) / 8), n_outputs(task.decoder.sizes[task.decoder.n_layers]),
        width(widest(task.decoder, layers)), stride(stride_for<T>(width)), n_words(width / 64), value(value),
        slope(slope), on(on) {
    const int64_t n_hidden = layers.size();
    value.resize((n_hidden + 1) * n_rows * stride), slope.resize(n_hidden * n_rows * stride);
    on.resize(n_hidden * n_rows * n_words);
  }

  void run() {
    const int64_t n_hidden = layers.size(), n_first = task.decoder.sizes[1];
    Phases phases;
    for (const auto &layer : layers) phases.add(layer.n_panels, [&](int64_t panel) { layer.pack(panel); });
    phases.add((n_rows + ROWS - 1) / ROWS,
               [&](int64_t part) { forward(part * ROWS, std::min(n_rows, (part + 1) * ROWS)); });
    for (int64_t i = n_hidden; i > 0; --i)
      phases.add((layers[i - 1].n_in + UNITS - 1) / UNITS, [this, i](int64_t part) {
        backward(i, part * UNITS, std::min(layers[i - 1].n_in, (part + 1) * UNITS));
      });
    multiply_transposed(phases, task.packed, slopes(0, 0), stride, static_cast<T *>(task.weight_gradients[0]), n_rows,
                        task.n_latents, n_first, task.n_threads);
    phases.run(task.n_threads);
    T *last = static_cast<T *>(task.bias_gradients[n_hidden]);
    std::fill_n(last, n_outputs, T(0));
    for (int64_t r = 0; r < n_rows; ++r) add_row(last, T(1), slopes(n_hidden, r), last, n_outputs);
  }

private:
  // Rows [first, end): values of all layers, and the gradient of the outputs.
  void forward(int64_t first, int64_t end) {
    std::vector<int32_t> list(8 * n_bytes);
    const Network &net = task.decoder;
    for (int64_t r = first; r < end; ++r) {
      const int64_t n_ones = list_ones(task.packed + r * n_bytes, n_bytes, list.data());
      sum_rows(static_cast<const T *>(net.biases[0]), static_cast<const T *>(net.weights[0]), net.sizes[1], list.data(),
               n_ones, values(0, r));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      for (int64_t r = first; r < end; ++r) {
        activate(RELU, values(i, r), ones(i, r), layers[i].n_in);
        std::copy_n(layers[i].bias, layers[i].n_out, values(i + 1, r));
      }
      layers[i].apply(end - first, ones(i, first), n_words, values(i, first), values(i + 1, first), stride);
    }
    for (int64_t r = first; r < end; ++r) {
      T *difference = values(layers.size(), r);
      const T factor = static_cast<const T *>(task.weight)[r] * task.scale;
      add_row(difference, T(-1), static_cast<const T *>(task.x) + task.point[r] * n_outputs, difference, n_outputs);
      for (int64_t d = 0; d < n_outputs; ++d) difference[d] *= factor;
      if (task.observed)
        for (int64_t d = 0; d < n_outputs; ++d) difference[d] *= task.observed[task.point[r] * n_outputs + d];
    }
  }

  // Units [first, end) of the layer below layer i: gradients of their outgoing weights, their sums and their biases.
  void backward(int64_t i, int64_t first, int64_t end) {
    const Layer<T> &layer = layers[i - 1];
    T *gradient = static_cast<T *>(task.weight_gradients[i]), *bias = static_cast<T *>(task.bias_gradients[i - 1]);
    std::fill(gradient + first * layer.n_out, gradient + end * layer.n_out, T(0));
    std::fill(bias + first, bias + end, T(0));
    for (int64_t r = 0; r < n_rows; ++r) {
      const T *in = values(i - 1, r), *above = slopes(i, r);
      T *below = slopes(i - 1, r);
      std::fill(below + first, below + end, T(0));
      const Word word = ones(i - 1, r)[first / 64] >> first % 64 & ((Word(1) << UNITS) - 1);
      for (Word rest = word; rest; rest &= rest - 1) {
        const int64_t k = first + __builtin_ctzll(rest);
        below[k] = dot(layer.weight + k * layer.n_out, above, layer.n_out);
        bias[k] += below[k];
        add_row(gradient + k * layer.n_out, in[k], above, gradient + k * layer.n_out, layer.n_out);
      }
    }
  }
};

template <class T> void run_gradient(const GradientTask &task) {
  static thread_local Array<T> value, slope;
  static thread_local Array<Word> on;
  Backward<T>(task, value, slope, on).run();
}

}  // namespace
