// Activation functions on vectors, and which of their results are not zero.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "vectors.hpp"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

enum Activation { RELU, LEAKY_RELU, ELU, GELU, SILU, SOFTPLUS, TANH, SIGMOID };  // numbered as in bindings.py

template <class T> Vec<T> exp(Vec<T> x) {
  using V = Vec<T>;
  constexpr bool single = sizeof(T) == 4;
  using Int = std::conditional_t<single, int32_t, int64_t>;
  using I = Vec<Int>;
  constexpr T top = single ? 88 : 709, shift = single ? 0x1.8p23 : 0x1.8p52;
  constexpr int mantissa = single ? 23 : 52, degree = single ? 7 : 13;
  constexpr T log2_e = 1.4426950408889634, ln2_high = single ? 0x1.62e4p-1 : 0x1.62e42fefap-1;
  constexpr T ln2_low = 0.6931471805599453094172L - static_cast<long double>(ln2_high);
  x = x > top ? V{} + top : x;
  x = x < -(top - 1) ? V{} - (top - 1) : x;
  V n = x * log2_e + shift;  // the low bits hold the nearest integer
  V r = x - (n - shift) * ln2_high - (n - shift) * ln2_low;
  V p = V{} + 1;
  for (int k = degree; k >= 1; --k) p = 1 + p * (r * static_cast<T>(1.0 / k));
  return (V)((I)p + ((I)n << mantissa));
}

// log(1 + y) for y in [0, 1], as 2 artanh(y / (2 + y)).
template <class T> Vec<T> log1p(Vec<T> y) {
  Vec<T> s = y / (2 + y), s2 = s * s, sum = Vec<T>{};
  for (int k = sizeof(T) == 4 ? 15 : 33; k >= 1; k -= 2) sum = sum * s2 + static_cast<T>(2.0 / k);
  return s * sum;
}

template <class T, Activation A> Vec<T> activation(Vec<T> x) {
  using V = Vec<T>;
  const V zero{};
  switch (A) {  // comparisons are written so that NaN passes through
  case RELU: return x < 0 ? zero : x;
  case LEAKY_RELU: return x < 0 ? x * T(0.01) : x;
  case ELU: return x < 0 ? exp<T>(x) - 1 : x;
  case SILU: return x / (1 + exp<T>(-x));
  case SOFTPLUS: return (x < 0 ? zero : x) + log1p<T>(exp<T>(x < 0 ? x : -x));
  case TANH: return 1 - 2 / (exp<T>(2 * x) + 1);
  case SIGMOID: return 1 / (1 + exp<T>(-x));
  case GELU:
    for (int i = 0; i < WIDTH<T>; ++i) x[i] *= T(0.5) * (1 + std::erf(x[i] * T(0.70710678118654752440)));
    return x;
  }
}

// A word with ones where the 64 values are not zero.
template <class T> Word nonzero(const T *value) {
  Word word = 0;
#if defined(__AVX512F__)
  for (int i = 0; i < 64; i += WIDTH<T>) {
    Word bits;
    if constexpr (sizeof(T) == 4)
      bits = _mm512_cmp_ps_mask(_mm512_loadu_ps(value + i), _mm512_setzero_ps(), _CMP_NEQ_UQ);
    else
      bits = _mm512_cmp_pd_mask(_mm512_loadu_pd(value + i), _mm512_setzero_pd(), _CMP_NEQ_UQ);
    word |= bits << i;
  }
#elif defined(__AVX2__)
  for (int i = 0; i < 64; i += WIDTH<T>) {
    Word bits;
    if constexpr (sizeof(T) == 4)
      bits = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(value + i), _mm256_setzero_ps(), _CMP_NEQ_UQ));
    else
      bits = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(value + i), _mm256_setzero_pd(), _CMP_NEQ_UQ));
    word |= bits << i;
  }
#else
  for (int i = 0; i < 64; ++i) word |= static_cast<Word>(value[i] != 0) << i;
#endif
  return word;
}

template <class T, Activation A> void activate_all(T *value, Word *on, int64_t size) {
  for (int64_t i = 0; i < size; i += 64) {
    for (int j = 0; j < 64; j += WIDTH<T>) vec(value + i + j) = activation<T, A>(vec(value + i + j));
    on[i / 64] = nonzero(value + i) & (size - i < 64 ? (Word(1) << (size - i)) - 1 : ~Word(0));
  }
}

// f of `size` sums in place (there is room for whole words), and which of the results are not zero.
template <class T> void activate(Activation kind, T *value, Word *on, int64_t size) {
  switch (kind) {
  case RELU: return activate_all<T, RELU>(value, on, size);
  case LEAKY_RELU: return activate_all<T, LEAKY_RELU>(value, on, size);
  case ELU: return activate_all<T, ELU>(value, on, size);
  case GELU: return activate_all<T, GELU>(value, on, size);
  case SILU: return activate_all<T, SILU>(value, on, size);
  case SOFTPLUS: return activate_all<T, SOFTPLUS>(value, on, size);
  case TANH: return activate_all<T, TANH>(value, on, size);
  case SIGMOID: return activate_all<T, SIGMOID>(value, on, size);
  }
}

}  // namespace
