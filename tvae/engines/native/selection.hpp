// Parent selection: the same choices from the same random numbers as core/evolution.py's SELECTIONS.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "order.hpp"
#include "random.hpp"
#include "vectors.hpp"

namespace {

enum Selection { FITNESS, POSTERIOR, BEST, UNIFORM };  // numbered as in bindings.py

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

template <class T> class Selector {
  Array<T> cumulative;  // (pool,)

public:
  // Fill `parents` with places out of `pool`; `fitness` is by place.
  void select(Selection kind, const Array<T> &fitness, const Array<int32_t> &pool, Array<int32_t> &parents,
              Stream &rng) {
    if (kind == UNIFORM) {
      for (auto &chosen : parents) chosen = pool[rng.integer(pool.size())];
      return;
    }
    if (kind == BEST) {
      std::partial_sort_copy(pool.begin(), pool.end(), parents.begin(), parents.end(),
                             [&](int32_t a, int32_t b) { return rank(fitness[a]) > rank(fitness[b]); });
      return;
    }
    cumulative.resize(pool.size());
    for (size_t i = 0; i < pool.size(); ++i) cumulative[i] = fitness[pool[i]];
    accumulate(kind, cumulative);
    for (auto &chosen : parents) {
      const T draw = rng.uniform<T>() * cumulative.back();
      const int64_t place = std::upper_bound(cumulative.begin(), cumulative.end(), draw) - cumulative.begin();
      chosen = pool[std::min<int64_t>(place, pool.size() - 1)];
    }
  }
};

}  // namespace
