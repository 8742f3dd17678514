// Vectors as wide as the processor's, words of 64 bits, and arrays aligned to cache lines.
//
// All headers of this folder are parts of one translation unit, kernel.cpp. What they define is in an unnamed
// namespace: the compiler sees every caller and can inline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

using Word = uint64_t;  // one bit for each of 64 inputs of a layer

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#else
constexpr int VECTOR_BYTES = 32;
#endif

template <class T> struct Vectors {
  typedef T Vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
  static constexpr int width = VECTOR_BYTES / sizeof(T);
};
template <class T> using Vec = typename Vectors<T>::Vec;
template <class T> constexpr int WIDTH = Vectors<T>::width;
template <class T> Vec<T> &vec(T *p) { return *reinterpret_cast<Vec<T> *>(p); }
template <class T> const Vec<T> &vec(const T *p) { return *reinterpret_cast<const Vec<T> *>(p); }

// The sum of a vector's elements: of its halves, of their halves, and so on.
template <class T, int BYTES> struct Sum {
  typedef T Whole __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
  typedef T Half __attribute__((vector_size(BYTES / 2), aligned(sizeof(T)), may_alias));
  static T of(Whole whole) {
    Half half[2];
    std::memcpy(half, &whole, BYTES);
    if constexpr (BYTES / 2 > sizeof(T))
      return Sum<T, BYTES / 2>::of(half[0] + half[1]);
    else
      return half[0][0] + half[1][0];
  }
};
template <class T> T sum_of(Vec<T> vector) { return Sum<T, VECTOR_BYTES>::of(vector); }

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

template <class T> struct Aligned {  // to cache lines: vectors then never straddle two
  using value_type = T;
  Aligned() = default;
  template <class U> Aligned(const Aligned<U> &) {}
  T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T *p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  template <class U> bool operator==(const Aligned<U> &) const { return true; }
  template <class U> bool operator!=(const Aligned<U> &) const { return false; }
};
template <class T> using Array = std::vector<T, Aligned<T>>;

// For at least n elements. Memory that became smaller and larger by turns would be cleared every time.
template <class T> void make_room(Array<T> &array, size_t n) {
  if (array.size() < n) array.resize(n);
}

}  // namespace
