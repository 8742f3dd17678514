// Sums of rows of a weight matrix: those whose latents are on, or those whose input is not zero, times its value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.hpp"

namespace {

// out = sum + factor row
template <class T> void add_row(const T *sum, T factor, const T *row, T *out, int64_t size) {
  int64_t i = 0;
  for (; i + WIDTH<T> <= size; i += WIDTH<T>) vec(out + i) = vec(sum + i) + factor * vec(row + i);
  for (; i < size; ++i) out[i] = sum[i] + factor * row[i];
}

// out = bias + the sum of rows, P vectors wide.
template <class T, int P>
void sum_rows(const T *bias, const T *weight, int64_t size, const int32_t *ones, int64_t n_ones, T *out) {
  Vec<T> total[P];
  for (int p = 0; p < P; ++p) total[p] = vec(bias + p * WIDTH<T>);
  for (int64_t i = 0; i < n_ones; ++i)
    for (int p = 0; p < P; ++p) total[p] += vec(weight + ones[i] * size + p * WIDTH<T>);
  for (int p = 0; p < P; ++p) vec(out + p * WIDTH<T>) = total[p];
}

// out (M,) = bias (M,) + the rows of weight (H, M) that are listed.
template <class T>
void sum_rows(const T *bias, const T *weight, int64_t size, const int32_t *ones, int64_t n_ones, T *out) {
  constexpr int64_t W = WIDTH<T>;
  int64_t i = 0;
  for (; i + 8 * W <= size; i += 8 * W) sum_rows<T, 8>(bias + i, weight + i, size, ones, n_ones, out + i);
  for (; i + W <= size; i += W) sum_rows<T, 1>(bias + i, weight + i, size, ones, n_ones, out + i);
  for (; i < size; ++i) {
    out[i] = bias[i];
    for (int64_t j = 0; j < n_ones; ++j) out[i] += weight[ones[j] * size + i];
  }
}

// List the latents that are on in a packed state, in order; returns their number.
inline int64_t list_ones(const uint8_t *packed, int64_t n_bytes, int32_t *ones) {
  int64_t count = 0;
  for (int64_t i = 0; i < n_bytes; i += 8) {
    Word word = 0;
    std::memcpy(&word, packed + i, std::min<int64_t>(8, n_bytes - i));
    for (; word; word &= word - 1) ones[count++] = 8 * i + __builtin_ctzll(word);
  }
  return count;
}

// sum[s] += value[s][k] rows[k] over the ones k of a word on[s], for n states s and P vectors of outputs.
template <class T, int P>
void add_rows(int64_t n, const Word *on, int64_t on_stride, const T *value, const T *rows, T *sum, int64_t stride) {
  constexpr int W = WIDTH<T>;
  for (int64_t s = 0; s < n; ++s, on += on_stride, value += stride, sum += stride) {
    Vec<T> total[P];
    for (int p = 0; p < P; ++p) total[p] = vec(sum + p * W);
    for (Word word = *on; word; word &= word - 1) {
      const int k = __builtin_ctzll(word);
      const T factor = value[k];
      const T *row = rows + k * (P * W);
      for (int p = 0; p < P; ++p) total[p] += factor * vec(row + p * W);
    }
    for (int p = 0; p < P; ++p) vec(sum + p * W) = total[p];
  }
}

}  // namespace
