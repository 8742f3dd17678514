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
  for (; i + 4 * W <= size; i += 4 * W) sum_rows<T, 4>(bias + i, weight + i, size, ones, n_ones, out + i);
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
inline int64_t list_ones(const Word *state, int64_t n_words, int32_t *ones) {
  int64_t count = 0;
  for (int64_t i = 0; i < n_words; ++i)
    for (Word word = state[i]; word; word &= word - 1) ones[count++] = 64 * i + __builtin_ctzll(word);
  return count;
}

// sum[s] = start + value[s][k] rows[k] over the ones k of n words, for P vectors of outputs; start null: sum[s] itself.
// The words are every `on_stride`-th of `on`, of which those inputs count that are in `mask`.
template <class T, int P>
void add_rows(int64_t n, const Word *on, int64_t on_stride, Word mask, const T *value, int64_t stride, const T *rows,
              const T *start, T *sum, int64_t sum_stride) {
  constexpr int W = WIDTH<T>;
  for (int64_t s = 0; s < n; ++s, on += on_stride, value += stride, sum += sum_stride) {
    Vec<T> total[P], other[P];  // few vectors at a time would wait for their last addition
    for (int p = 0; p < P; ++p) total[p] = vec((start ? start : sum) + p * W), other[p] = Vec<T>{};
    Word word = *on & mask;
    if constexpr (P <= 6)
      for (Word rest; (rest = word & (word - 1)); word = rest & (rest - 1)) {
        const int k = __builtin_ctzll(word), l = __builtin_ctzll(rest);
        for (int p = 0; p < P; ++p) total[p] += value[k] * vec(rows + (k * P + p) * W);
        for (int p = 0; p < P; ++p) other[p] += value[l] * vec(rows + (l * P + p) * W);
      }
    for (; word; word &= word - 1) {
      const int k = __builtin_ctzll(word);
      for (int p = 0; p < P; ++p) total[p] += value[k] * vec(rows + (k * P + p) * W);
    }
    for (int p = 0; p < P; ++p) vec(sum + p * W) = P <= 6 ? total[p] + other[p] : total[p];
  }
}

}  // namespace
