// Vectors of 32 bytes, words of 64 bits, and arrays aligned to cache lines.
//
// All headers of this folder are parts of one translation unit, kernel.cpp. What they define is in an unnamed
// namespace: the compiler sees every caller and can inline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace {

using Word = uint64_t;  // one bit for each of 64 inputs of a layer

template <class T> struct Vectors {
  typedef T Vec __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
  static constexpr int width = 32 / sizeof(T);
};
template <class T> using Vec = typename Vectors<T>::Vec;
template <class T> constexpr int WIDTH = Vectors<T>::width;
template <class T> Vec<T> &vec(T *p) { return *reinterpret_cast<Vec<T> *>(p); }
template <class T> const Vec<T> &vec(const T *p) { return *reinterpret_cast<const Vec<T> *>(p); }

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

}  // namespace
