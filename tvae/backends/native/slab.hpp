// The E-step, the sums of the M-step and posterior moments for a linear decoder with slabs, see model/slab.py.
//
//   log p(x, z) = log p(z) + log N(x; b + sum_h z_h w_h, sigma2 I + sum_h z_h U_h U_h^T)
//
// By Woodbury's formula on the k r coefficients of the k latents that are on. V_h = [w_h; U_h] are r + 1 rows. What is
// needed of them are products with x - b, and of each other: the blocks (r + 1, r + 1) of one Gram matrix.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rows.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

constexpr int MOST_ON = 8;  // latents in any state, see slab.py

template <class T> T dot(const T *a, const T *b, int64_t n) {
  Vec<T> total{}, other{};
  int64_t i = 0;
  for (; i + 2 * WIDTH<T> <= n; i += 2 * WIDTH<T>) {
    total += vec(a + i) * vec(b + i);
    other += vec(a + i + WIDTH<T>) * vec(b + i + WIDTH<T>);
  }
  for (; i + WIDTH<T> <= n; i += WIDTH<T>) total += vec(a + i) * vec(b + i);
  T sum = sum_of<T>(total + other);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

struct SparseState {
  int k = 0;
  uint16_t on[MOST_ON];  // in increasing order
  double log_joint = 0;
  bool operator==(const SparseState &o) const { return k == o.k && !std::memcmp(on, o.on, k * sizeof(uint16_t)); }
  bool has(int h) const {
    for (int i = 0; i < k; ++i)
      if (on[i] == h) return true;
    return false;
  }
  SparseState with(int h) const {
    SparseState s = *this;
    int i = s.k++;
    for (; i > 0 && s.on[i - 1] > h; --i) s.on[i] = s.on[i - 1];
    s.on[i] = h;
    return s;
  }
  SparseState without(int i) const {
    SparseState s = *this;
    for (--s.k; i < s.k; ++i) s.on[i] = s.on[i + 1];
    return s;
  }
};

// What all data points share: V^T with rows padded to whole vectors, and of M_h = I + U_h U_h^T / sigma2, which is
// diagonal because the rows of U_h are orthogonal, its inverse and log-determinant.
template <class T> struct SlabShared {
  int64_t width;
  Array<T> transposed, inverse, log_det, own;  // own (H, r + 1): products of w_h with V_h

  explicit SlabShared(const SlabTask &task) {
    const int64_t H = task.n_latents, D = task.n_values, r = task.rank, r1 = r + 1;
    width = round_up(r1, WIDTH<T>);
    transposed.assign(H * D * width, T(0)), inverse.resize(H * r1), own.resize(H * r1), log_det.assign(H, T(0));
    for (int64_t h = 0; h < H; ++h) {
      const T *v = static_cast<const T *>(task.vectors) + h * r1 * D;
      for (int64_t a = 0; a < r1; ++a)
        for (int64_t d = 0; d < D; ++d) transposed[(h * D + d) * width + a] = v[a * D + d];
      for (int64_t a = 0; a < r1; ++a) own[h * r1 + a] = dot(v, v + a * D, D);
      for (int64_t a = 0; a < r; ++a) {
        const T m = 1 + dot(v + (a + 1) * D, v + (a + 1) * D, D) / T(task.sigma2);
        inverse[h * r1 + a] = 1 / m;
        log_det[h] += std::log(m);
      }
    }
  }
  // out (width,) = V_h x
  void project(int64_t h, const T *x, int64_t D, T *out) const {
    constexpr int64_t W = WIDTH<T>;
    const T *rows = &transposed[h * D * width];
    for (int64_t i = 0; i < width; i += W) {
      Vec<T> sum[4] = {};
      int64_t d = 0;
      for (; d + 4 <= D; d += 4)
        for (int u = 0; u < 4; ++u) sum[u] += x[d + u] * vec(rows + (d + u) * width + i);
      for (; d < D; ++d) sum[0] += x[d] * vec(rows + d * width + i);
      vec(out + i) = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  }
};

// All that one thread needs for one data point after the other.
template <class T> class SlabPoint {
  const SlabTask &task;
  const SlabShared<T> &shared;
  const int64_t D, H, r, r1;
  const T *vectors, *gram, *bias;
  const double inverse;  // of sigma2
  Array<T> residual, projections, gains, masked, blocks;
  std::vector<int32_t> slot, latents, block_of;
  std::vector<SparseState> population;
  Array<T> factor, solution;  // of M = I + U^T U / sigma2: its Cholesky factor, and L^-1 c
  const T *logit;
  double rest, square;
  int64_t n_observed;
  const uint8_t *observed;
  int64_t stride;

  const T *vector(int h) const { return observed ? &masked[slot[h] * r1 * D] : vectors + h * r1 * D; }
  const T *block(int h, int j) {
    if (!observed) return gram + (h * H + j) * r1 * r1;
    const int64_t n_slots = latents.size(), key = slot[h] * n_slots + slot[j];
    if (block_of[key] < 0) {
      block_of[key] = blocks.size() / (r1 * r1);
      const T *a = vector(h), *b = vectors + j * r1 * D;
      for (int64_t i = 0; i < r1; ++i)
        for (int64_t l = 0; l < r1; ++l) blocks.push_back(dot(a + i * D, b + l * D, D));
    }
    return &blocks[block_of[key] * r1 * r1];
  }
  void add_latent(int h) {
    if (slot[h] >= 0) return;
    slot[h] = latents.size();
    latents.push_back(h);
    make_room(projections, latents.size() * shared.width);
    const T *v = vectors + h * r1 * D;
    if (observed) {
      make_room(masked, latents.size() * r1 * D);
      T *m = &masked[slot[h] * r1 * D];
      for (int64_t a = 0; a < r1; ++a)
        for (int64_t d = 0; d < D; ++d) m[a * D + d] = observed[d] ? v[a * D + d] : T(0);
    }
    shared.project(h, residual.data(), D, &projections[slot[h] * shared.width]);
  }

public:
  SlabPoint(const SlabTask &task, const SlabShared<T> &shared)
      : task(task), shared(shared), D(task.n_values), H(task.n_latents), r(task.rank), r1(r + 1),
        vectors(static_cast<const T *>(task.vectors)), gram(static_cast<const T *>(task.gram)),
        bias(static_cast<const T *>(task.bias)), inverse(1 / task.sigma2), residual(D), gains(H), slot(H, -1),
        stride(MOST_ON * r) {
    factor.resize(stride * stride + 1), solution.resize(stride + 1);
  }

  // log p(x, z); with `coefficients` (k r,) also E[a | x, z].
  double evaluate(SparseState &state, T *coefficients = nullptr) {
    const int k = state.k;
    const int64_t n = k * r;
    const T scale = inverse;
    double distance = square, log_prior = rest;
    T *L = factor.data(), *y = solution.data();
    for (int i = 0; i < k; ++i) {
      const int h = state.on[i];
      const T *p = &projections[slot[h] * shared.width];
      log_prior += logit[h];
      distance -= 2 * double(p[0]);
      for (int64_t a = 0; a < r; ++a) y[i * r + a] = p[1 + a];
      for (int j = 0; j < k; ++j) {
        const T *g = block(h, state.on[j]);
        distance += g[0];
        for (int64_t a = 0; a < r; ++a) y[i * r + a] -= g[(a + 1) * r1];
        if (j > i) continue;
        for (int64_t a = 0; a < r; ++a)
          for (int64_t b = 0; b < r; ++b) L[(i * r + a) * stride + j * r + b] = scale * g[(a + 1) * r1 + b + 1];
      }
    }
    double log_det = 0, inside = 0;
    const int64_t n_diagonal = observed ? 0 : std::min(n, r);  // the first latent's directions are orthogonal
    for (int64_t i = 0; i < n; ++i) {
      T *row = L + i * stride;
      row[i] += 1;
      if (i < n_diagonal)
        std::fill_n(row, i, T(0));
      else {
        for (int64_t j = 0; j < n_diagonal; ++j) row[j] *= L[j * stride + j];  // the diagonal holds inverses
        for (int64_t j = n_diagonal; j < i; ++j) {
          const T *other = L + j * stride;
          row[j] = (row[j] - dot(row, other, j)) * other[j];
        }
      }
      const T pivot = std::max(i < n_diagonal ? row[i] : row[i] - dot(row, row, i), T(1e-12));
      const T root = 1 / std::sqrt(pivot);
      log_det += std::log(double(pivot));
      row[i] = root;
      y[i] = (scale * y[i] - (i < n_diagonal ? T(0) : dot(row, y, i))) * root;
      inside += double(y[i]) * y[i];
    }
    if (coefficients)
      for (int64_t i = n - 1; i >= 0; --i) {
        T t = y[i];
        for (int64_t j = i + 1; j < n; ++j) t -= L[j * stride + i] * coefficients[j];
        coefficients[i] = t * L[i * stride + i];
      }
    return state.log_joint = log_prior - 0.5 * (distance * inverse - inside + log_det +
                                                n_observed * std::log(2 * M_PI * task.sigma2));
  }

  // inv (n, n) = L^-1 of the last `evaluate`; returns the trace of M^-1 = L^-T L^-1.
  double invert(int64_t n) {
    const T *L = factor.data();
    make_room(inverted, n * n);
    double trace = 0;
    for (int64_t i = 0; i < n; ++i) {
      T *row = &inverted[i * n];
      std::fill_n(row, n, T(0));
      for (int64_t l = 0; l < i; ++l)
        if (L[i * stride + l] != 0) add_row(row, -L[i * stride + l], &inverted[l * n], row, l + 1);
      const T root = L[i * stride + i];
      for (int64_t j = 0; j < i; ++j) row[j] *= root;
      row[i] = root;
      trace += dot(row, row, i + 1);
    }
    return trace;
  }
  // covariance (n, n) of the coefficients, after `invert`
  void covariance(int64_t n, T *cov) {
    std::fill_n(cov, n * n, T(0));
    for (int64_t l = 0; l < n; ++l)
      for (int64_t i = 0; i <= l; ++i)
        add_row(cov + i * n, inverted[l * n + i], &inverted[l * n], cov + i * n, l + 1);
  }
  Array<T> inverted;

  // Children of a state with one more latent: those that explain best what it leaves, as if its coefficients were known.
  void propose(SparseState base) {
    make_room(coefficients, stride);
    evaluate(base, coefficients.data());
    const T *c = coefficients.data();
    const T scale = inverse;
    const bool is_exact = base.k == 0 && !observed;
    order.clear();
    for (const int h : latents) {
      if (base.has(h)) continue;
      const T *p = &projections[slot[h] * shared.width], *own = observed ? nullptr : &shared.own[h * r1];
      T v[64], of_masked[64];
      if (observed) {
        const T *g = block(h, h);
        for (int64_t a = 0; a < r1; ++a) of_masked[a] = g[a * r1];
        own = of_masked;
      }
      for (int64_t a = 0; a < r1; ++a) v[a] = p[a];
      for (int j = 0; j < base.k; ++j) {
        const T *g = block(base.on[j], h);  // (r1, r1), columns are of h
        for (int64_t a = 0; a < r1; ++a) v[a] -= g[a];
        for (int64_t b = 0; b < r; ++b)
          for (int64_t a = 0; a < r1; ++a) v[a] -= c[j * r + b] * g[(b + 1) * r1 + a];
      }
      T inside = 0, log_det = observed ? T(0) : shared.log_det[h];
      for (int64_t a = 1; a < r1; ++a) {
        const T w = (v[a] - own[a]) * scale;
        if (observed) {
          const T m = 1 + block(h, h)[a * r1 + a] * scale;
          inside += w * w / m;
          log_det += std::log(m);
        } else
          inside += w * w * shared.inverse[h * r1 + a - 1];
      }
      order.push_back({logit[h] - 0.5 * ((own[0] - 2 * v[0]) * inverse - inside + log_det), h});
    }
    const size_t n = std::min<size_t>(task.n_children, order.size());
    std::partial_sort(order.begin(), order.begin() + n, order.end(), [](auto &a, auto &b) { return a.first > b.first; });
    double best = -1e300;
    for (auto &state : population) best = std::max(best, state.log_joint);
    chosen.assign(order.begin(), order.begin() + n);
    for (auto &[gain, h] : chosen) {
      if (base.log_joint + gain < best - task.far_below) break;
      SparseState child = base.with(h);
      if (is_exact) {
        child.log_joint = base.log_joint + gain;
        if (!is_known(child)) population.push_back(child);
      } else
        consider(child);
      best = std::max(best, population.back().log_joint);
    }
  }
  Array<T> coefficients;
  std::vector<std::pair<double, int>> order, chosen;

  bool is_known(const SparseState &state) const {
    for (auto &other : population)
      if (other == state) return true;
    return false;
  }
  void consider(SparseState state) {
    if (is_known(state)) return;
    evaluate(state);
    population.push_back(state);
  }

  void visit(int64_t n, int64_t part) {
    const T *x = static_cast<const T *>(task.x) + n * D;
    observed = task.observed ? task.observed + n * D : nullptr;
    const int64_t cell = task.cell ? task.cell[n] : 0;
    logit = static_cast<const T *>(task.logit) + cell * H;
    rest = static_cast<const T *>(task.rest)[cell];
    square = 0, n_observed = 0;
    for (int64_t d = 0; d < D; ++d) {
      const bool is_known = !observed || observed[d];
      residual[d] = is_known ? x[d] - bias[d] : T(0);
      square += double(residual[d]) * residual[d];
      n_observed += is_known;
    }
    for (const int h : latents) slot[h] = -1;
    latents.clear(), population.clear(), blocks.clear();
    const int64_t n_bytes = (H + 7) / 8, S = task.n_states;
    std::vector<SparseState> &old = old_states;
    old.clear();
    std::vector<int32_t> ones(8 * n_bytes + 64);
    for (int64_t s = 0; s < S; ++s) {
      const int64_t count = list_ones(task.packed + (n * S + s) * n_bytes, n_bytes, ones.data());
      SparseState state;
      state.k = count;  // not more than MOST_ON: slab.py sees to it
      for (int i = 0; i < state.k; ++i) state.on[i] = ones[i], add_latent(ones[i]);
      old.push_back(state);
    }
    if (task.n_generations > 0) {
      if (task.candidates)
        for (int64_t i = 0; i < task.n_candidates; ++i) add_latent(task.candidates[cell * task.n_candidates + i]);
      else
        for (int64_t h = 0; h < H; ++h) add_latent(h);
    }
    if (observed) block_of.assign(latents.size() * latents.size(), -1);
    for (auto &state : old) consider(state);
    if (task.n_generations > 0) propose(SparseState());
    for (int64_t g = 0; g < task.n_generations; ++g) {
      std::vector<SparseState> parents = population;
      const size_t m = std::min<size_t>(task.n_parents, parents.size());
      std::partial_sort(parents.begin(), parents.begin() + m, parents.end(),
                        [](auto &a, auto &b) { return a.log_joint > b.log_joint; });
      for (size_t i = 0; i < m; ++i) {
        if (parents[i].k < task.most_on) propose(parents[i]);
        for (int j = 0; j < parents[i].k; ++j) {
          SparseState less = parents[i].without(j);
          consider(less);
          if (less.k > 0 && less.k < task.most_on) propose(less);
        }
      }
    }
    std::partial_sort(population.begin(), population.begin() + S, population.end(),
                      [](auto &a, auto &b) { return a.log_joint > b.log_joint; });
    population.resize(S);
    int64_t n_new = 0;
    for (auto &state : population) n_new += std::find(old.begin(), old.end(), state) == old.end();
    task.n_accepted[n] = n_new;
    finish(n, part);
  }

  std::vector<SparseState> old_states;

  void finish(int64_t n, int64_t part) {
    const int64_t n_bytes = (H + 7) / 8, S = task.n_states;
    const double best = population[0].log_joint;
    double total = 0;
    for (auto &state : population) total += std::exp(state.log_joint - best);
    T *first = task.shift ? static_cast<T *>(task.shift) + part * H * D : nullptr;
    T *second = task.spread ? static_cast<T *>(task.spread) + part * H * D * D : nullptr;
    uint8_t *out = task.new_packed + n * S * n_bytes;
    std::memset(out, 0, S * n_bytes);
    for (int64_t s = 0; s < S; ++s) {
      const SparseState &state = population[s];
      for (int i = 0; i < state.k; ++i) out[s * n_bytes + state.on[i] / 8] |= 1 << (state.on[i] % 8);
      double log_prior = rest;
      for (int i = 0; i < state.k; ++i) log_prior += logit[state.on[i]];
      task.log_joint[n * S + s] = state.log_joint, task.log_prior[n * S + s] = log_prior;
    }
    if (!first && !task.mean) return;
    T *mean = task.mean ? static_cast<T *>(task.mean) + n * D : nullptr;
    T *variance = task.variance ? static_cast<T *>(task.variance) + n * D : nullptr;
    if (mean) std::fill_n(mean, D, T(0));
    if (variance) std::fill_n(variance, D, T(0));
    make_room(coefficients, stride), make_room(parts, (MOST_ON + 2) * D), make_room(cov, stride * stride);
    double kept = 0;
    for (auto &state : population) {
      const double q = std::exp(state.log_joint - best) / total;
      if (q >= task.prune) kept += q;
    }
    for (auto &state : population) {
      const double share = std::exp(state.log_joint - best) / total;
      if (share < task.prune) continue;
      const T q = share / kept;
      const int k = state.k;
      const int64_t m = k * r;
      evaluate(state, coefficients.data());
      const double spread = task.sigma2 * (m - invert(m));  // the trace of U Cov U^T over what is observed
      if (variance || observed || k > 1) covariance(m, cov.data());
      T *sum = &parts[MOST_ON * D], *left = sum + D;
      std::fill_n(sum, D, T(0));
      for (int i = 0; i < k; ++i) {
        const T *v = vectors + state.on[i] * r1 * D;
        T *p = &parts[i * D];
        std::copy_n(v, D, p);
        for (int64_t a = 0; a < r; ++a) add_row(p, coefficients[i * r + a], v + (a + 1) * D, p, D);
        add_row(sum, T(1), p, sum, D);
        if (!first) continue;
        task.active[n * H + state.on[i]] += q;
        task.together[part * H + state.on[i]] += q * k;
      }
      double error = 0;
      for (int64_t d = 0; d < D; ++d)
        if (!observed || observed[d]) error += double(residual[d] - sum[d]) * (residual[d] - sum[d]);
      if (first) task.error[part] += q * (error + spread);
      if (mean) add_row(mean, q, sum, mean, D);
      if (variance) add_variance(state, q, sum, variance);
      if (!first) continue;
      for (int i = 0; i < k; ++i) {
        const int h = state.on[i];
        for (int64_t d = 0; d < D; ++d) {
          const T rest_of = (!observed || observed[d]) ? residual[d] - sum[d] : T(0);
          left[d] = rest_of + parts[i * D + d] - vectors[h * r1 * D + d];
        }
        add_row(first + h * D, q, left, first + h * D, D);
        T *rows = second + h * D * D;
        for (int64_t d = 0; d < D; ++d) add_row(rows + d * D, q * left[d], left, rows + d * D, D);
        if (k > 1 || observed) add_spread(state, i, q, rows);
      }
    }
    if (mean)
      for (int64_t d = 0; d < D; ++d) {
        if (variance) variance[d] = std::max(variance[d] - mean[d] * mean[d], T(0));
        mean[d] += bias[d];
      }
  }
  Array<T> parts, cov;

  // variance += q (diag(U C U^T) + sum^2)
  void add_variance(const SparseState &state, T q, const T *sum, T *variance) {
    const int64_t m = state.k * r;
    make_room(row, D);
    for (int64_t d = 0; d < D; ++d) variance[d] += q * sum[d] * sum[d];
    for (int64_t i = 0; i < m; ++i) {
      T *t = row.data();
      std::fill_n(t, D, T(0));
      for (int64_t j = 0; j < m; ++j)
        add_row(t, cov[i * m + j], vectors + (state.on[j / r] * r1 + j % r + 1) * D, t, D);
      const T *u = vectors + (state.on[i / r] * r1 + i % r + 1) * D;
      for (int64_t d = 0; d < D; ++d) variance[d] += q * u[d] * t[d];
    }
  }
  Array<T> row;

  // rows (D, D) += q A Cov A^T for what is left for latent i, y = ... + A a: the others are taken off where x is observed;
  // a missing value is what the latent itself contributes, and noise.
  void add_spread(const SparseState &state, int i, T q, T *rows) {
    const int64_t m = state.k * r;
    make_room(signed_rows, m * D), make_room(row, D);
    for (int64_t l = 0; l < m; ++l) {
      const T *u = vectors + (state.on[l / r] * r1 + l % r + 1) * D;
      for (int64_t d = 0; d < D; ++d) {
        const bool is_known = !observed || observed[d];
        signed_rows[l * D + d] = l / r == i ? (is_known ? T(0) : u[d]) : (is_known ? -u[d] : T(0));
      }
    }
    for (int64_t l = 0; l < m; ++l) {
      if (l / r == i && !observed) continue;
      T *t = row.data();
      std::fill_n(t, D, T(0));
      for (int64_t j = 0; j < m; ++j) add_row(t, cov[l * m + j], &signed_rows[j * D], t, D);
      for (int64_t d = 0; d < D; ++d)
        if (signed_rows[l * D + d] != 0) add_row(rows + d * D, q * signed_rows[l * D + d], t, rows + d * D, D);
    }
    if (observed)
      for (int64_t d = 0; d < D; ++d)
        if (!observed[d]) rows[d * D + d] += q * T(task.sigma2);
  }
  Array<T> signed_rows;
};

template <class T> void run_slab(const SlabTask &task) {
  Phases phases;
  const int64_t n_parts = task.n_parts;
  const SlabShared<T> shared(task);
  phases.add(n_parts, [&](int64_t part) {
    SlabPoint<T> point(task, shared);
    const int64_t from = task.n_points * part / n_parts, to = task.n_points * (part + 1) / n_parts;
    for (int64_t n = from; n < to; ++n) point.visit(n, part);
  });
  phases.run(task.n_threads);
}

}  // namespace
