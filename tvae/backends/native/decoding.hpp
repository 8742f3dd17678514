// From states to the decoder's outputs mu(z), a block of states at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "activations.hpp"
#include "layers.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

constexpr int64_t BLOCK = 64;  // states that share a pass over a layer's weights

// Every state is decoded by itself and from its list of ones: what comes out does not depend on how it was found.
template <class T> class Decoding {
  const Network *net;
  const std::vector<Layer<T>> *layers;  // behind the first
  int64_t n_state_words, n_words, stride, mu_stride;
  Array<T> value[2];    // (BLOCK, stride): a layer's inputs and outputs
  Array<Word> on;       // (BLOCK, n_words): which inputs are not zero
  Array<int32_t> ones;  // latents that are on

public:
  void prepare(const Network &net, const std::vector<Layer<T>> &layers) {
    this->net = &net, this->layers = &layers;
    n_state_words = (net.sizes[0] + 63) / 64;
    const int64_t width = widest(net, layers);
    n_words = width / 64, stride = stride_for<T>(width), mu_stride = output_stride(net, layers);
    for (auto &array : value) array.resize(BLOCK * stride);
    on.resize(BLOCK * n_words), ones.resize(64 * n_state_words);
  }

  // mu (count, mu_stride), with zeros behind the outputs, of the states that `state_at` points to.
  template <class StateAt> void decode(int64_t count, StateAt state_at, T *mu) {
    for (int64_t first = 0; first < count; first += BLOCK, mu += BLOCK * mu_stride) {
      const int64_t n = std::min(BLOCK, count - first);
      for (int64_t s = 0; s < n; ++s)
        sum_first(state_at(first + s), layers->empty() ? mu + s * mu_stride : value[0].data() + s * stride);
      apply_layers(n, mu);
    }
  }

private:
  void sum_first(const Word *state, T *out) {
    const int64_t n_ones = list_ones(state, n_state_words, ones.data()), size = net->sizes[1];
    sum_rows(static_cast<const T *>(net->biases[0]), static_cast<const T *>(net->weights[0]), size, ones.data(), n_ones,
             out);
    if (layers->empty()) std::fill(out + size, out + mu_stride, T(0));
  }

  void apply_layers(int64_t n, T *mu) {
    T *in = value[0].data(), *out = value[1].data();
    for (const auto &layer : *layers) {
      for (int64_t s = 0; s < n; ++s)
        activate(static_cast<Activation>(net->activation), in + s * stride, &on[s * n_words], layer.n_in);
      const bool is_last = &layer == &layers->back();
      layer.apply(n, on.data(), n_words, in, stride, is_last ? mu : out, is_last ? mu_stride : stride);
      std::swap(in, out);
    }
  }
};

// Memory that a thread keeps from call to call. Inlined, its address would be looked up again at every use.
template <class T> __attribute__((noinline)) Decoding<T> &decoding_of_thread() {
  static thread_local Decoding<T> decoding;
  return decoding;
}

}  // namespace
