// Products, factors and inverses of small dense matrices, by rows. Rows are padded with zeros to whole vectors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.hpp"

namespace {

constexpr int64_t ROWS_AT_ONCE = 4;  // of a product: with 3 vectors of columns they fill 16 registers

template <class T> int64_t whole_vectors(int64_t column) { return column / WIDTH<T> * WIDTH<T>; }

// A matrix by its elements a[i * row + k * column]: also the transpose of one that is stored by rows.
template <class T> struct Elements {
  const T *a;
  int64_t row, column;
};

template <class T, int COLUMNS, bool adds>
void product_block(Elements<T> a, const T *b, int64_t stride, int64_t depth, T *out) {
  Vec<T> sums[ROWS_AT_ONCE][COLUMNS];
  for (int i = 0; i < ROWS_AT_ONCE; ++i)
    for (int j = 0; j < COLUMNS; ++j) sums[i][j] = adds ? vec(out + i * stride + j * WIDTH<T>) : Vec<T>{};
  for (int64_t k = 0; k < depth; ++k) {
    Vec<T> row[COLUMNS];
    for (int j = 0; j < COLUMNS; ++j) row[j] = vec(b + k * stride + j * WIDTH<T>);
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
      const T factor = a.a[i * a.row + k * a.column];
      for (int j = 0; j < COLUMNS; ++j) sums[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < ROWS_AT_ONCE; ++i)
    for (int j = 0; j < COLUMNS; ++j) vec(out + i * stride + j * WIDTH<T>) = sums[i][j];
}

// out = a b for ROWS_AT_ONCE rows, from column `first` on, or the same added to `out`. `depth_at(end)`: how many rows of b
// count for columns below `end`.
template <bool adds = false, class T, class Depth>
void product_rows(Elements<T> a, const T *b, int64_t stride, int64_t first, Depth depth_at, T *out) {
  constexpr int64_t width = WIDTH<T>;
  for (int64_t j = first, n; j < stride; j += n * width) {
    const int64_t left = (stride - j) / width;
    n = left == 4 ? 2 : std::min<int64_t>(left, 3);
    const int64_t depth = depth_at(j + n * width);
    if (n == 3) product_block<T, 3, adds>(a, b + j, stride, depth, out + j);
    if (n == 2) product_block<T, 2, adds>(a, b + j, stride, depth, out + j);
    if (n == 1) product_block<T, 1, adds>(a, b + j, stride, depth, out + j);
  }
}

enum class Shape { full, upper_product, upper_sum, upper_factor };

// out (n_rows, stride) = a (n_rows, depth) b (depth, stride), with room for a multiple of ROWS_AT_ONCE rows.
// `upper_product`: the lower triangle is not wanted, `upper_sum`: the same, added to `out`; `upper_factor`: the lower
// triangle of b is zero.
template <Shape shape, class T>
void product(Elements<T> a, const T *b, int64_t stride, int64_t n_rows, int64_t depth, T *out) {
  const auto depth_at = [=](int64_t end) { return shape == Shape::upper_factor ? std::min(depth, end) : depth; };
  for (int64_t i = 0; i < n_rows; i += ROWS_AT_ONCE) {
    const bool is_upper = shape == Shape::upper_product || shape == Shape::upper_sum;
    const int64_t first = is_upper ? whole_vectors<T>(i) : 0;
    product_rows<shape == Shape::upper_sum>(Elements<T>{a.a + i * a.row, a.row, a.column}, b, stride, first, depth_at, out + i * stride);
  }
}

// row += factor * other, from the vector on that column `first` is in
template <class T> void add_from(T *row, T factor, const T *other, int64_t first, int64_t stride) {
  for (int64_t j = whole_vectors<T>(first); j < stride; j += WIDTH<T>) vec(row + j) += factor * vec(other + j);
}

// The upper triangle of m (size, stride), positive definite, becomes U with m = U^T U. Below it anything may stand.
// `work`: (ROWS_AT_ONCE, stride).
template <class T> void factorise(T *m, int64_t size, int64_t stride, T *work) {
  for (int64_t first = 0; first < size; first += ROWS_AT_ONCE) {
    const int64_t last = std::min(first + ROWS_AT_ONCE, size);
    product_rows(Elements<T>{m + first, 1, stride}, m, stride, whole_vectors<T>(first), [=](int64_t) { return first; },
                 work);
    for (int64_t j = first; j < last; ++j) {
      T *row = m + j * stride;
      add_from(row, T(-1), work + (j - first) * stride, j, stride);
      for (int64_t k = first; k < j; ++k) add_from(row, -m[k * stride + j], m + k * stride, j, stride);
      const T scale = 1 / std::sqrt(row[j]);
      for (int64_t k = whole_vectors<T>(j); k < stride; k += WIDTH<T>) vec(row + k) *= scale;
    }
  }
}

// out (size, stride) = U^-1, upper as well. Left of the diagonal, out is zero before and after. `work` as above.
template <class T> void invert_upper(const T *u, int64_t size, int64_t stride, T *out, T *work) {
  for (int64_t first = (size - 1) / ROWS_AT_ONCE * ROWS_AT_ONCE; first >= 0; first -= ROWS_AT_ONCE) {
    const int64_t last = std::min(first + ROWS_AT_ONCE, size);
    product_rows(Elements<T>{u + first * stride + last, stride, 1}, out + last * stride, stride, whole_vectors<T>(last),
                 [=](int64_t end) { return std::min(end, size) - last; }, work);
    for (int64_t i = last - 1; i >= first; --i) {
      T *row = out + i * stride;
      const T scale = 1 / u[i * stride + i];
      std::fill(row + i, row + stride, T(0));
      row[i] = scale;
      add_from(row, -scale, work + (i - first) * stride, last, stride);
      for (int64_t k = i + 1; k < last; ++k) add_from(row, -scale * u[i * stride + k], out + k * stride, k, stride);
    }
  }
}

}  // namespace
