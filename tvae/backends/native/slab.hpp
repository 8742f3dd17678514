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
#include "slab_shared.hpp"
#include "slab_whole.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

// All that one thread needs for one data point after the other.
template <class T> class SlabPoint {
  const SlabTask &task;
  const SlabShared<T> &shared;
  SlabSums<T> &sums;
  const int64_t D, H, r, r1;
  const T *vectors, *bias;
  const double inverse;  // of sigma2
  Array<T> residual, projections, gains, blocks;
  std::vector<int32_t> slot, latents, block_of;
  std::vector<SparseState> population;
  Array<T> factor, solution;  // of M = I + U^T U / sigma2: its Cholesky factor, and L^-1 c
  CellPrior<T> prior;
  double rest, square;
  int64_t n_observed;
  std::vector<int32_t> place;  // of the values that are observed
  const uint8_t *observed;
  int64_t stride;

  const T *block(int h, int j) {
    const int64_t n_slots = latents.size(), key = slot[h] * n_slots + slot[j];
    if (block_of[key] < 0) {
      block_of[key] = blocks.size() / (r1 * r1);
      blocks.resize(blocks.size() + r1 * r1);
      shared.gram_over(place, h, j, &blocks[block_of[key] * r1 * r1]);
    }
    return &blocks[block_of[key] * r1 * r1];
  }
  void add_latent(int h) {
    if (slot[h] >= 0) return;
    slot[h] = latents.size();
    latents.push_back(h);
    make_room(projections, latents.size() * shared.width);
    shared.project(h, residual.data(), 1, &projections[slot[h] * shared.width], 0);
  }

public:
  SlabPoint(const SlabTask &task, const SlabShared<T> &shared, SlabSums<T> &sums)
      : task(task), shared(shared), sums(sums), D(task.n_values), H(task.n_latents), r(task.rank), r1(r + 1),
        vectors(static_cast<const T *>(task.vectors)),
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
      log_prior += prior.logit(h);
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

  // The same for one latent and a part of the values, where M is not diagonal.
  double evaluate_one(SparseState &state) {
    constexpr int64_t W = WIDTH<T>;
    const int h = state.on[0];
    const int64_t n_columns = round_up(r, W);
    const T *p = &projections[slot[h] * shared.width], *g = block(h, h);
    const T scale = inverse;
    make_room(upper, r * n_columns + n_columns);
    T *A = upper.data(), *y = A + r * n_columns;
    for (int64_t a = 0; a < r; ++a) {
      T *row = A + a * n_columns;
      for (int64_t b = 0; b < r; ++b) row[b] = scale * g[(a + 1) * r1 + b + 1];
      for (int64_t b = r; b < n_columns; ++b) row[b] = 0;
      row[a] += 1;
      y[a] = scale * (p[1 + a] - g[a + 1]);
    }
    std::fill(y + r, y + n_columns, T(0));
    double log_det = 0, inside = 0, product = 1;
    for (int64_t k = 0; k < r; ++k) {
      T *own = A + k * n_columns;
      const T pivot = std::max(own[k], T(1e-12)), over = 1 / pivot;
      product *= pivot;
      if (k % 8 == 7) log_det += std::log(product), product = 1;
      inside += double(y[k]) * y[k] * over;
      for (int64_t i = k + 1; i < r; ++i) {
        const T f = own[i] * over;
        T *row = A + i * n_columns;
        for (int64_t c = i / W * W; c < n_columns; c += W) vec(row + c) -= f * vec(own + c);
      }
      const T f = y[k] * over;
      for (int64_t c = (k + 1) / W * W; c < n_columns; c += W) vec(y + c) -= f * vec(own + c);
    }
    log_det += std::log(product);
    return state.log_joint = rest + prior.logit(h) - 0.5 * ((square - 2 * double(p[0]) + g[0]) * inverse - inside + log_det +
                                                      n_observed * std::log(2 * M_PI * task.sigma2));
  }
  Array<T> upper;  // triangle of M, and what is left of c

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
    order.clear();
    if (base.k == 0 && observed) {  // directions are not orthogonal over a part of the values: no gain can be foreseen
      for (const int h : latents) consider(base.with(h));
      return;
    }
    for (const int h : latents) {
      if (base.has(h)) continue;
      const T *p = &projections[slot[h] * shared.width], *own;
      make_room(work, 2 * r1);
      T *v = &work[0], *of_masked = v + r1;
      const T *g = block(h, h);
      for (int64_t a = 0; a < r1; ++a) of_masked[a] = g[a * r1];
      own = of_masked;
      for (int64_t a = 0; a < r1; ++a) v[a] = p[a];
      for (int j = 0; j < base.k; ++j) {
        const T *g = block(base.on[j], h);  // (r1, r1), columns are of h
        for (int64_t a = 0; a < r1; ++a) v[a] -= g[a];
        for (int64_t b = 0; b < r; ++b)
          for (int64_t a = 0; a < r1; ++a) v[a] -= c[j * r + b] * g[(b + 1) * r1 + a];
      }
      T inside = 0, log_det = 0;
      for (int64_t a = 1; a < r1; ++a) {
        const T w = (v[a] - own[a]) * scale;
        const T m = 1 + block(h, h)[a * r1 + a] * scale;
        inside += w * w / m;
        log_det += std::log(m);
      }
      order.push_back({prior.logit(h) - 0.5 * ((own[0] - 2 * v[0]) * inverse - inside + log_det), h});
    }
    const size_t n = std::min<size_t>(task.n_children, order.size());
    std::partial_sort(order.begin(), order.begin() + n, order.end(), [](auto &a, auto &b) { return a.first > b.first; });
    double best = -1e300;
    for (auto &state : population) best = std::max(best, state.log_joint);
    chosen.assign(order.begin(), order.begin() + n);
    for (auto &[gain, h] : chosen) {
      if (base.log_joint + gain < best - task.far_below) break;
      SparseState child = base.with(h);
      consider(child);
      best = std::max(best, population.back().log_joint);
    }
  }
  Array<T> coefficients, work;
  std::vector<std::pair<double, int>> order, chosen;

  bool is_known(const SparseState &state) const {
    for (auto &other : population)
      if (other == state) return true;
    return false;
  }
  void consider(SparseState state) {
    if (is_known(state)) return;
    if (observed && state.k == 1)
      evaluate_one(state);
    else
      evaluate(state);
    population.push_back(state);
  }

  void visit(int64_t n) {
    const T *x = static_cast<const T *>(task.x) + n * D;
    observed = task.observed ? task.observed + n * D : nullptr;
    const int64_t cell = task.cell ? task.cell[n] : 0;
    prior.enter(task, cell);
    rest = prior.rest;
    if (observed && std::all_of(observed, observed + D, [](uint8_t is_known) { return is_known; })) observed = nullptr;
    square = 0, n_observed = 0, place.clear();
    for (int64_t d = 0; d < D; ++d) {
      const bool is_known = !observed || observed[d];
      residual[d] = is_known ? x[d] - bias[d] : T(0);
      square += double(residual[d]) * residual[d];
      n_observed += is_known;
      if (is_known) place.push_back(d);
    }
    for (const int h : latents) slot[h] = -1;
    latents.clear(), population.clear(), blocks.clear();
    const int64_t n_bytes = (H + 7) / 8, S = task.n_states;
    std::vector<SparseState> &old = old_states;
    old.clear();
    for (int64_t s = 0; s < S; ++s) {
      old.push_back(SparseState::unpack(task.packed + (n * S + s) * n_bytes, n_bytes));
      for (int i = 0; i < old.back().k; ++i) add_latent(old.back().on[i]);
    }
    for (const int h : prior.candidates) add_latent(h);
    block_of.assign(latents.size() * latents.size(), -1);
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
    finish(n);
  }

  std::vector<SparseState> old_states;

  void finish(int64_t n) {
    const int64_t n_bytes = (H + 7) / 8, S = task.n_states;
    const double best = population[0].log_joint;
    double total = 0;
    for (auto &state : population) total += std::exp(state.log_joint - best);
    sums.elbo += best + std::log(total);
    T *first = sums.shift.empty() ? nullptr : sums.shift.data();
    T *second = sums.spread.empty() ? nullptr : sums.spread.data();
    double *active = sums.active + (task.cell ? task.cell[n] * H : 0);
    uint8_t *out = task.new_packed + n * S * n_bytes;
    std::memset(out, 0, S * n_bytes);
    for (int64_t s = 0; s < S; ++s) {
      const SparseState &state = population[s];
      for (int i = 0; i < state.k; ++i) out[s * n_bytes + state.on[i] / 8] |= 1 << (state.on[i] % 8);
      double log_prior = rest;
      for (int i = 0; i < state.k; ++i) log_prior += prior.logit(state.on[i]);
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
        if (first) active[state.on[i]] += q, sums.together[state.on[i]] += q * k;
      }
      double error = 0;
      for (int64_t d = 0; d < D; ++d)
        if (!observed || observed[d]) error += double(residual[d] - sum[d]) * (residual[d] - sum[d]);
      if (first) sums.error += q * (error + spread);
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

// The data points cell by cell, and where parts of them begin, which are whole cells.
struct SlabOrder {
  std::vector<int64_t> points, begins;

  explicit SlabOrder(const SlabTask &task) {
    const int64_t n = task.n_points, n_parts = task.n_parts;
    std::vector<int64_t> next(task.n_cells + 1, 0);
    const auto cell = [&](int64_t i) { return task.cell ? task.cell[i] : 0; };
    points.resize(n);
    for (int64_t i = 0; i < n; ++i) ++next[cell(i) + 1];
    for (int64_t c = 0; c < task.n_cells; ++c) next[c + 1] += next[c];
    for (int64_t i = 0; i < n; ++i) points[next[cell(i)]++] = i;
    for (int64_t part = 0; part <= n_parts; ++part) {
      int64_t begin = n * part / n_parts;
      while (task.cell && 0 < begin && begin < n && cell(points[begin]) == cell(points[begin - 1])) ++begin;
      begins.push_back(begin);
    }
  }
};

template <class T> void run_slab(SlabTask &task) {
  const int64_t n_parts = task.n_parts, H = task.n_latents, D = task.n_values, n_bytes = (H + 7) / 8;
  // rows of sums: those of SlabWhole are padded
  const int64_t pitch = task.observed ? D : round_up(D, WIDTH<T>), n_rows = task.observed ? D : round_up(D, ROWS_AT_ONCE);
  task.most_found = task.most_on;
  for (int64_t i = 0; i < task.n_points * task.n_states; ++i)
    task.most_found = std::max<int64_t>(task.most_found, SparseState::count(task.packed + i * n_bytes, n_bytes));
  if (task.most_found > MOST_ON) return;  // slab.py tells
  Phases phases;
  const SlabShared<T> shared(task, phases);
  const SlabOrder order(task);
  std::vector<SlabSums<T>> sums(n_parts);
  phases.add(n_parts, [&](int64_t part) {
    SlabSums<T> &mine = sums[part];
    mine.active = task.active ? task.active + (task.cell ? 0 : part * H) : nullptr;
    if (task.spread)
      mine.together.assign(H, 0), mine.shift.assign(H * pitch, T(0)), mine.spread.assign(H * n_rows * pitch, T(0));
    const int64_t *from = &order.points[order.begins[part]], *end = &order.points[order.begins[part + 1]];
    if (task.observed) {
      SlabPoint<T> point(task, shared, mine);
      for (; from < end; ++from) point.visit(*from);
    } else {
      SlabWhole<T> points(task, shared, mine);
      while (from < end) {
        const int64_t *next = from + 1;
        while (next < end && (!task.cell || task.cell[*next] == task.cell[*from])) ++next;
        points.visit(from, next - from);
        from = next;
      }
    }
  });
  if (task.spread)
    phases.add(H, [&](int64_t h) {
      double *shift = task.shift + h * D, *spread = task.spread + h * D * D;
      for (const auto &part : sums) {
        task.together[h] += part.together[h];
        for (int64_t d = 0; d < D; ++d) {
          const T *row = &part.spread[(h * n_rows + d) * pitch];
          shift[d] += part.shift[h * pitch + d];
          for (int64_t e = d; e < D; ++e) spread[d * D + e] += row[e];
        }
      }
      for (int64_t d = 0; d < D; ++d)
        for (int64_t e = 0; e < d; ++e) spread[d * D + e] = spread[e * D + d];
    });
  phases.run(task.n_threads);
  for (const auto &part : sums) task.error += part.error, task.elbo += part.elbo;
}

}  // namespace
