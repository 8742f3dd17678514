// Products of packed states z (R, H) with matrices, see inference/products.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rows.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

// out (R, M) = z @ weight (H, M) + bias (M,)
template <class T>
void multiply(const uint8_t *packed, const T *weight, const T *bias, T *out, int64_t n_rows, int64_t n_latents,
              int64_t n_columns, int64_t n_threads) {
  constexpr int64_t at_once = 8;
  const int64_t n_bytes = (n_latents + 7) / 8;
  Phases phases;
  phases.add((n_rows + at_once - 1) / at_once, [=](int64_t part) {
    std::vector<int32_t> ones(8 * n_bytes);
    for (int64_t r = part * at_once; r < std::min(n_rows, (part + 1) * at_once); ++r) {
      const int64_t n_ones = list_ones(packed + r * n_bytes, n_bytes, ones.data());
      sum_rows(bias, weight, n_columns, ones.data(), n_ones, out + r * n_columns);
    }
  });
  phases.run(n_threads);
}

// out (H, M) = z^T @ grad (R, M), whose rows are `stride` apart. Threads share out the columns, not the rows: sums are
// always taken in the order of r.
template <class T>
void multiply_transposed(Phases &phases, const uint8_t *packed, const T *grad, int64_t stride, T *out, int64_t n_rows,
                         int64_t n_latents, int64_t n_columns) {
  constexpr int64_t at_once = 64;
  const int64_t n_bytes = (n_latents + 7) / 8;
  phases.add((n_columns + at_once - 1) / at_once, [=](int64_t part) {
    const int64_t first = part * at_once, count = std::min(at_once, n_columns - first);
    for (int64_t h = 0; h < n_latents; ++h) std::fill_n(out + h * n_columns + first, count, T(0));
    std::vector<int32_t> ones(8 * n_bytes);
    for (int64_t r = 0; r < n_rows; ++r) {
      const int64_t n_ones = list_ones(packed + r * n_bytes, n_bytes, ones.data());
      for (int64_t i = 0; i < n_ones; ++i) {
        T *sum = out + ones[i] * n_columns + first;
        add_row(sum, T(1), grad + r * stride + first, sum, count);
      }
    }
  });
}

// gram (H+1, H+1) += sum_r weight_r y_r y_r^T, and mean (B, H+1) += weight_r y_r in the row of r's data point. y_r is
// z_r with a last latent that is always on. On one thread: few latents are on, and sums are taken in the order of r.
template <class T>
void add_moments(const uint8_t *packed, const T *weight, const int64_t *point, double *gram, T *mean, int64_t n_rows,
                 int64_t n_latents) {
  const int64_t n_bytes = (n_latents + 7) / 8, size = n_latents + 1;
  std::vector<int32_t> ones(8 * n_bytes + 1);
  for (int64_t r = 0; r < n_rows; ++r) {
    int64_t n_ones = list_ones(packed + r * n_bytes, n_bytes, ones.data());
    ones[n_ones++] = n_latents;
    const T factor = weight[r];
    T *of_point = mean + point[r] * size;
    for (int64_t i = 0; i < n_ones; ++i) {
      of_point[ones[i]] += factor;
      double *row = gram + ones[i] * size;
      for (int64_t j = 0; j < n_ones; ++j) row[ones[j]] += factor;
    }
  }
}

}  // namespace
