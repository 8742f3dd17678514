// Order: floating-point numbers as integers that sort the same way, NaN above all others as in torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

inline uint32_t rank(float x) {
  if (std::isnan(x)) return ~0u;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
inline uint64_t rank(double x) {
  if (std::isnan(x)) return ~uint64_t(0);
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  return bits >> 63 ? ~bits : bits | 0x8000000000000000u;
}

// The largest threshold that at least `count` of the ranks reach, by bisection: each step is one pass without branches.
template <class R> R threshold(const R *ranks, int64_t n, int64_t count) {
  R low = *std::min_element(ranks, ranks + n), high = *std::max_element(ranks, ranks + n);
  while (low < high) {
    const R middle = high - (high - low) / 2;
    R reached = 0;
    for (int64_t i = 0; i < n; ++i) reached += ranks[i] >= middle;
    if (static_cast<int64_t>(reached) == count) return middle;
    if (static_cast<int64_t>(reached) > count)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace
