// The decoder's layers behind the first, with weights repacked so that a pass over them reads memory in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rows.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

constexpr int PANEL_MAX = 12;             // vectors of outputs summed up in registers; AVX2 has 16, AVX-512 32
constexpr int64_t PACKED_AT_ONCE = 32;   // inputs whose weights a thread packs
constexpr int64_t NEAR_BYTES = 24 << 10;  // of weights that stay in the nearest cache while states pass by

template <class T>
using AddRows = void (*)(int64_t, const Word *, int64_t, Word, const T *, int64_t, const T *, const T *, T *, int64_t);
template <class T>
constexpr AddRows<T> ADD_ROWS[PANEL_MAX + 1] = {
    nullptr,        add_rows<T, 1>, add_rows<T, 2>, add_rows<T, 3>,  add_rows<T, 4>,  add_rows<T, 5>, add_rows<T, 6>,
    add_rows<T, 7>, add_rows<T, 8>, add_rows<T, 9>, add_rows<T, 10>, add_rows<T, 11>, add_rows<T, 12>};

// A layer behind the first: its weights cut into panels of P vectors of outputs, [panel][input][P vectors].
template <class T> struct Layer {
  int64_t n_in, n_out, n_panels, panel;  // panel: vectors in each
  T *packed, *start;         // start (n_columns,): the bias, then zeros
  const T *weight, *bias;

  Layer(int64_t n_in, int64_t n_out, const T *weight, const T *bias)
      : n_in(n_in), n_out(n_out), weight(weight), bias(bias) {
    const int64_t vectors = (n_out + WIDTH<T> - 1) / WIDTH<T>;
    n_panels = (vectors + PANEL_MAX - 1) / PANEL_MAX;
    panel = (vectors + n_panels - 1) / n_panels;
  }
  int64_t panel_size() const { return panel * WIDTH<T>; }
  int64_t n_columns() const { return n_panels * panel_size(); }

  // Packing is shared out by panels, and within them by inputs.
  int64_t n_parts_to_pack() const { return n_panels * ((n_in + PACKED_AT_ONCE - 1) / PACKED_AT_ONCE); }
  void pack(int64_t part) const {
    const int64_t which = part % n_panels, first = part / n_panels * PACKED_AT_ONCE;
    const int64_t begin = which * panel_size(), count = std::clamp<int64_t>(n_out - begin, 0, panel_size());
    if (first == 0) std::fill(std::copy_n(bias + begin, count, start + begin), start + begin + panel_size(), T(0));
    T *to = packed + begin * n_in + first * panel_size();
    for (int64_t k = first; k < std::min(n_in, first + PACKED_AT_ONCE); ++k, to += panel_size()) {
      std::copy_n(weight + k * n_out + begin, count, to);
      std::fill(to + count, to + panel_size(), T(0));
    }
  }
  const T *packed_row(int64_t which, int64_t k) const { return packed + (which * n_in + k) * panel_size(); }

  // out (n, n_columns) = bias + value (n, n_in) @ weight, where `on` marks the values that are not zero
  void apply(int64_t n, const Word *on, int64_t n_words, const T *value, int64_t stride, T *out,
             int64_t out_stride) const {
    const bool is_wide = 64 * panel_size() * static_cast<int64_t>(sizeof(T)) > NEAR_BYTES;
    const Word low = is_wide ? ~Word(0) >> 32 : ~Word(0);
    for (int64_t which = 0; which < n_panels; ++which) {
      const int64_t column = which * panel_size();
      for (int64_t k = 0; k < n_in; k += 64)
        for (const Word mask : {low, ~low})
          if (mask)
            ADD_ROWS<T>[panel](n, on + k / 64, n_words, mask, value + k, stride, packed_row(which, k),
                               k == 0 && mask == low ? start + column : nullptr, out + column, out_stride);
    }
  }
};

// `layers` have to live until the phases are done.
template <class T> void add_packing(Phases &phases, const std::vector<Layer<T>> &layers) {
  for (const auto &layer : layers) phases.add(layer.n_parts_to_pack(), [&](int64_t part) { layer.pack(part); });
}

// The layers behind the first. Their packed weights are in memory that this thread keeps, valid until the next call.
template <class T> std::vector<Layer<T>> hidden_layers(const Network &net) {
  static thread_local Array<T> memory;
  std::vector<Layer<T>> layers;
  int64_t size = 0;
  for (int64_t i = 1; i < net.n_layers; ++i) {
    layers.emplace_back(net.sizes[i], net.sizes[i + 1], static_cast<const T *>(net.weights[i]),
                        static_cast<const T *>(net.biases[i]));
    size += (layers.back().n_in + 1) * layers.back().n_columns();
  }
  memory.resize(size);
  T *next = memory.data();
  for (auto &layer : layers) {
    layer.packed = next, layer.start = next + layer.n_in * layer.n_columns();
    next = layer.start + layer.n_columns();
  }
  return layers;
}

// Room for the outputs of the decoder, in whole vectors.
template <class T> int64_t output_stride(const Network &net, const std::vector<Layer<T>> &layers) {
  return layers.empty() ? round_up(net.sizes[1], WIDTH<T>) : layers.back().n_columns();
}

// Room for the inputs or outputs of any layer, in whole words.
template <class T> int64_t widest(const Network &net, const std::vector<Layer<T>> &layers) {
  int64_t width = round_up(net.sizes[1], 64);
  for (const auto &layer : layers) width = std::max(width, round_up(layer.n_columns(), 64));
  return width;
}

// Distance of rows of this width: an odd number of cache lines, as rows a power of two apart would evict each other.
template <class T> int64_t stride_for(int64_t width) { return width + 64 / sizeof(T); }

}  // namespace
