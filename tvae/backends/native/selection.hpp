// Parent selection: the same choices from the same random numbers as inference/evolution.py's SELECTIONS.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "order.hpp"
#include "random.hpp"
#include "vectors.hpp"

namespace {

enum Selection { FITNESS, POSTERIOR, BEST, UNIFORM, AUTHORS };  // numbered as in bindings.py

// Fitness -> cumulative selection probability, not normalised; summed in double as torch does.
template <class T> void accumulate(Selection kind, Array<T> &share) {
  const auto [least, most] = std::minmax_element(share.begin(), share.end());
  const T low = *least, high = *most;
  double sum = 0;
  if (kind == POSTERIOR) {
    for (auto &s : share) sum += s = std::exp(s - high);
    for (auto &s : share) s /= static_cast<T>(sum);
  } else {
    for (auto &s : share) s = high == low ? T(1) : s - low;
  }
  sum = 0;
  for (auto &s : share) s = sum += s;
}

// Of the fitness of some states: what AUTHORS needs to know of the whole minibatch.
struct Spread {
  double least = std::numeric_limits<double>::infinity(), sum = 0;
  int64_t count = 0;

  void add(const Spread &other) { least = std::min(least, other.least), sum += other.sum, count += other.count; }
};

template <class T> Spread spread_of(const Array<T> &fitness, const Array<int32_t> &pool) {
  Spread found;
  for (const int32_t place : pool) found.add({static_cast<double>(fitness[place]), fitness[place], 1});
  return found;
}

// The same by AUTHORS: normalised by the sum over the minibatch.
template <class T> void accumulate_of_batch(const Spread &batch, Array<T> &share) {
  const double offset = 2 * std::min(batch.least, 0.0), total = batch.sum - offset * batch.count;
  double sum = 0;
  for (auto &s : share) s = sum += (s - offset) / total;
}

template <class T> class Selector {
  Array<T> cumulative;  // (pool,)

public:
  // Fill `parents` with places out of `pool`; `fitness` is by place, `batch` for AUTHORS.
  void select(Selection kind, const Array<T> &fitness, const Array<int32_t> &pool, const Spread &batch,
              Array<int32_t> &parents, Stream &rng) {
    if (kind == UNIFORM) {
      for (auto &chosen : parents) chosen = pool[rng.integer(pool.size())];
      return;
    }
    if (kind == BEST) {
      std::partial_sort_copy(pool.begin(), pool.end(), parents.begin(), parents.end(),
                             [&](int32_t a, int32_t b) { return rank(fitness[a]) > rank(fitness[b]); });
      return;
    }
    const int64_t size = pool.size();
    cumulative.resize(size);
    for (int64_t i = 0; i < size; ++i) cumulative[i] = fitness[pool[i]];
    if (kind == AUTHORS)
      accumulate_of_batch(batch, cumulative);
    else
      accumulate(kind, cumulative);
    const T end = kind == AUTHORS ? T(1) : cumulative.back();
    for (auto &chosen : parents) {
      const T draw = rng.uniform<T>() * end;
      const int64_t n_below = std::upper_bound(cumulative.begin(), cumulative.end(), draw) - cumulative.begin();
      chosen = pool[kind == AUTHORS ? (n_below + size - 1) % size : std::min(n_below, size - 1)];
    }
  }
};

}  // namespace
