// Random numbers: the same streams as inference/streams.py, by SplitMix64.
#pragma once

#include <cstdint>

namespace {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;

inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

struct Stream {
  uint64_t key, n_drawn;
  uint64_t bits() { return mix(key + ++n_drawn * GOLDEN); }
  template <class T> T uniform() { return static_cast<T>(bits() >> 40) * static_cast<T>(0x1p-24); }
  int64_t integer(int64_t high) { return (bits() >> 32) * high >> 32; }
  void distinct_integers(int64_t high, int64_t count, int64_t *chosen) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t top = high - count + j, draw = integer(top + 1);
      bool is_taken = false;  // looked for without leaving early: no branch to guess
      for (int64_t i = 0; i < j; ++i) is_taken |= chosen[i] == draw;
      chosen[j] = is_taken ? top : draw;
    }
  }
};

}  // namespace
