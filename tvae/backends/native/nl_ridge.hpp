// NL-Ridge of one group, see restoration/non_local/nl_ridge.py. With the group's pilot P (n, D), centred, and Y (n, D),
//
//   gain = K (K + sigma2 I)^-1 = P (P^T P + D sigma2 I)^-1 P^T = Q Q^T,    Q = P U^-1,    U^T U = P^T P + D sigma2 I
//
// which takes the factor of a matrix of D x D, and D is less than n as a rule. The diagonal of a gain is a sum of
// squares: no variance is ever negative.
#pragma once

#include <cstdint>

#include "dense.hpp"
#include "vectors.hpp"

namespace {

template <class T> struct Ridge {
  int64_t n, size, stride;  // patches; values of each, without and with what rows are padded by
  Array<T> pilot, noisy;    // (n, stride), centred; the pilot becomes the estimate
  Array<T> gain;            // (n,): the diagonal
  Array<T> moment, inverse, q, work;

  Ridge(int64_t n, int64_t size) : n(n), size(size), stride(round_up(size, WIDTH<float>)) {
    for (auto *each : {&pilot, &noisy, &q}) each->assign(round_up(n, ROWS_AT_ONCE) * stride, 0);
    for (auto *each : {&moment, &inverse}) each->assign(round_up(size, ROWS_AT_ONCE) * stride, 0);
    gain.assign(n, 0), work.assign(ROWS_AT_ONCE * stride, 0);
  }

  void solve(double sigma2) {
    T *const p = pilot.data(), *const m = moment.data(), *const by = q.data();
    product<Shape::upper_product>(Elements<T>{p, 1, stride}, p, stride, size, n, m);  // P^T P
    for (int64_t i = 0; i < size; ++i) m[i * stride + i] += T(size * sigma2);
    factorise(m, size, stride, work.data());
    invert_upper(m, size, stride, inverse.data(), work.data());
    product<Shape::upper_factor>(Elements<T>{p, stride, 1}, inverse.data(), stride, n, size, by);  // Q = P U^-1
    for (int64_t k = 0; k < n; ++k) {
      Vec<T> squares = {};
      for (int64_t i = 0; i < stride; i += WIDTH<T>) squares += vec(by + k * stride + i) * vec(by + k * stride + i);
      gain[k] = sum_of<T>(squares);
    }
    product<Shape::full>(Elements<T>{by, 1, stride}, noisy.data(), stride, size, n, m);  // Q^T Y
    product<Shape::full>(Elements<T>{by, stride, 1}, m, stride, n, size, p);             // Q Q^T Y
  }
};

// Groups one after the other, in single precision where that is enough.
class Groups {
  static constexpr double MOST = 1e4;  // trace of P^T P over D sigma2: gains are off by no more than 1e-3 then
  Ridge<float> single;
  Ridge<double> precise;

public:
  Groups(int64_t n, int64_t size) : single(n, size), precise(n, size) {}
  float *pilot(int64_t k) { return &single.pilot[k * single.stride]; }
  float *noisy(int64_t k) { return &single.noisy[k * single.stride]; }
  const float *estimate(int64_t k) { return pilot(k); }
  float gain(int64_t k) const { return single.gain[k]; }

  void solve(double sigma2) {
    Vec<float> squares = {};
    for (size_t i = 0; i < single.pilot.size(); i += WIDTH<float>) squares += vec(&single.pilot[i]) * vec(&single.pilot[i]);
    if (sum_of<float>(squares) <= MOST * single.size * sigma2) return single.solve(sigma2);
    std::copy(single.pilot.begin(), single.pilot.end(), precise.pilot.begin());
    std::copy(single.noisy.begin(), single.noisy.end(), precise.noisy.begin());
    precise.solve(sigma2);
    std::copy(precise.pilot.begin(), precise.pilot.end(), single.pilot.begin());
    std::copy(precise.gain.begin(), precise.gain.end(), single.gain.begin());
  }
};

}  // namespace
