// Back-propagation through one layer: the inner loop, with its sums in registers.
#pragma once

#include <cstdint>

#include "layers.hpp"
#include "vectors.hpp"

namespace {

// A unit below a layer and the rows that a word marks, for P vectors of the layer's outputs:
//     gradient += sum_r value_r above_r,   slope_r += weight . above_r
// `weight`, `gradient`: of the unit. `value`, `slope` and `above` are those of the first row; rows are `stride` apart.
template <class T, int P>
void add_slopes(Word rows, int64_t stride, const T *weight, const T *value, const T *above, T *gradient, T *slope) {
  constexpr int W = WIDTH<T>;
  Vec<T> sum[P];
  for (int p = 0; p < P; ++p) sum[p] = vec(gradient + p * W);
  for (; rows; rows &= rows - 1) {
    const int64_t r = __builtin_ctzll(rows) * stride;
    Vec<T> product[2]{};
    for (int p = 0; p < P; ++p) {
      const Vec<T> its = vec(above + r + p * W);
      sum[p] += value[r] * its;
      product[p % 2] += vec(weight + p * W) * its;
    }
    slope[r] += sum_of<T>(product[0] + product[1]);
  }
  for (int p = 0; p < P; ++p) vec(gradient + p * W) = sum[p];
}

template <class T> using AddSlopes = void (*)(Word, int64_t, const T *, const T *, const T *, T *, T *);
template <class T>
constexpr AddSlopes<T> ADD_SLOPES[PANEL_MAX + 1] = {
    nullptr,          add_slopes<T, 1>, add_slopes<T, 2>,  add_slopes<T, 3>,  add_slopes<T, 4>,
    add_slopes<T, 5>, add_slopes<T, 6>, add_slopes<T, 7>,  add_slopes<T, 8>,  add_slopes<T, 9>,
    add_slopes<T, 10>, add_slopes<T, 11>, add_slopes<T, 12>};

}  // namespace
