// The slab model for data points all of whose values are observed. See slab.hpp for the model.
//
// Whatever depends on the state alone is then the same for every data point: the inverse Cholesky factor of
//
//   M(z) = I + U^T U / sigma2 = L L^T,      y = L^-1 U^T (x - mu(z)) / sigma2,      log p(x, z) has |y|^2 and log |M|
//
// the spread of the coefficients and their variance. States of two latents and more keep it in a table, those of one need
// only a diagonal. Points are visited cell by cell: neighbours try the same latents and share most of their states.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "rows.hpp"
#include "slab_shared.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

// Of a state with several latents on.
struct SlabFactor {
  SparseState state;
  bool is_used = false, has_variance = false;
  double log_det, constant, spread;  // log |M|; |sum of the means|^2; trace of U M^-1 U^T
  double weight = 0;                 // sum of q, whose part of the second moments is still to be added
};

template <class T> class SlabWhole {
  static constexpr int64_t AT_ONCE = 8;               // points that are projected together
  static constexpr int64_t TABLE_BYTES = 6ll << 20;  // of the factors: a share of the last cache
  const SlabTask &task;
  const SlabShared<T> &shared;
  SlabSums<T> &sums;
  const int64_t D, H, r, r1, width, pitch, depth, stride;  // depth: rows of a factor; stride: their length
  const T *bias, *clean_bias;
  const double inverse;
  CellPrior<T> prior;
  std::vector<int32_t> slot, latents;  // of each latent, or -1; those of a point: the cell's and those of its states
  // of the points that are worked on together
  int64_t n_slots_max;
  Array<T> residuals, projected;
  // of one point
  const T *residual, *projections;
  double square = 0, empty = 0;
  std::vector<double> gains;
  std::vector<SparseState> population, old_states, parents;
  std::vector<std::pair<double, int32_t>> order;
  Array<T> y, coefficients, centred;
  // factors
  int64_t n_factors;
  std::vector<SlabFactor> factors;
  Array<T> inverses, offsets, variances, matrix, moved;

public:
  SlabWhole(const SlabTask &task, const SlabShared<T> &shared, SlabSums<T> &sums)
      : task(task), shared(shared), sums(sums), D(task.n_values), H(task.n_latents), r(task.rank), r1(r + 1),
        width(shared.width), pitch(shared.pitch), depth(task.most_found * r),
        stride(round_up(std::max<int64_t>(depth, 1), WIDTH<T>)), bias(static_cast<const T *>(task.bias)),
        clean_bias(task.clean_bias ? static_cast<const T *>(task.clean_bias) : bias),
        inverse(1 / task.sigma2), slot(H, -1), n_slots_max(H), residuals(AT_ONCE * pitch), projected(AT_ONCE * n_slots_max * width), y(stride),
        coefficients(stride), centred(stride) {
    const int64_t bytes = std::max<int64_t>(1, depth * stride * sizeof(T));
    for (n_factors = 64; n_factors < 4096 && 2 * n_factors * bytes <= TABLE_BYTES;) n_factors *= 2;
    if (task.most_found > 1) {
      factors.resize(n_factors), inverses.resize(n_factors * depth * stride), offsets.resize(n_factors * stride);
      if (task.mean) variances.resize(n_factors * pitch);
    }
    if (!sums.spread.empty()) pending.resize(H * PENDING * pitch), n_pending.assign(H, 0);
  }
  ~SlabWhole() {
    for (auto &factor : factors) flush(factor);
    for (size_t h = 0; h < n_pending.size(); ++h) add_pending(h);
  }
  SlabWhole(const SlabWhole &) = delete;

  // Points (count,) by their numbers, all of one cell.
  void visit(const int64_t *points, int64_t count) {
    enter(task.cell ? task.cell[points[0]] : 0);
    for (int64_t first = 0; first < count; first += AT_ONCE) {
      const int64_t n = std::min(AT_ONCE, count - first);
      for (int64_t i = 0; i < n; ++i) {
        const T *x = static_cast<const T *>(task.x) + points[first + i] * D;
        for (int64_t d = 0; d < D; ++d) residuals[i * pitch + d] = x[d] - bias[d];
      }
      for (size_t c = 0; c < prior.candidates.size(); ++c)
        shared.project(prior.candidates[c], residuals.data(), n, &projected[c * width], n_slots_max * width);
      for (int64_t i = 0; i < n; ++i) one(points[first + i], i);
    }
  }

private:
  void enter(int64_t cell) {
    if (cell == prior.cell) return;
    for (const int h : prior.candidates) slot[h] = -1;
    prior.enter(task, cell);
    for (size_t c = 0; c < prior.candidates.size(); ++c) slot[prior.candidates[c]] = c;
  }

  void one(int64_t n, int64_t place) {
    residual = &residuals[place * pitch];
    T *mine = &projected[place * n_slots_max * width];
    projections = mine;
    square = double(dot(residual, residual, pitch));
    empty = prior.rest - 0.5 * (square * inverse + D * std::log(2 * M_PI * task.sigma2));
    latents.assign(prior.candidates.begin(), prior.candidates.end());
    population.clear(), old_states.clear();
    const int64_t n_bytes = (H + 7) / 8, S = task.n_states;
    for (int64_t s = 0; s < S; ++s) {
      old_states.push_back(SparseState::unpack(task.packed + (n * S + s) * n_bytes, n_bytes));
      const SparseState &state = old_states.back();
      for (int i = 0; i < state.k; ++i)
        if (const int h = state.on[i]; slot[h] < 0) {
          slot[h] = latents.size(), latents.push_back(h);
          shared.project(h, residual, 1, mine + slot[h] * width, 0);
        }
    }
    weigh_single();
    for (auto &state : old_states) consider(state);
    if (task.n_generations > 0) propose_first();
    for (int64_t g = 0; g < task.n_generations; ++g) {
      const size_t m = std::min<size_t>(task.n_parents, population.size());
      parents = population;
      std::partial_sort(parents.begin(), parents.begin() + m, parents.end(), fitter);
      for (size_t i = 0; i < m; ++i) {
        if (parents[i].k > 0 && parents[i].k < task.most_on) propose(parents[i]);
        for (int j = 0; j < parents[i].k; ++j) {
          SparseState less = parents[i].without(j);
          consider(less);
          if (less.k > 0 && less.k < task.most_on) propose(less);
        }
      }
    }
    std::partial_sort(population.begin(), population.begin() + S, population.end(), fitter);
    population.resize(S);
    int64_t n_new = 0;
    for (auto &state : population) n_new += std::find(old_states.begin(), old_states.end(), state) == old_states.end();
    task.n_accepted[n] = n_new;
    finish(n);
    for (size_t s = prior.candidates.size(); s < latents.size(); ++s) slot[latents[s]] = -1;
  }
  static bool fitter(const SparseState &a, const SparseState &b) { return a.log_joint > b.log_joint; }

  // log N(v; w_h, sigma2 I + U_h U_h^T) + the logit, up to what does not depend on h; of v its products with V_h.
  double weigh(int h, const T *v) {
    const T *own = &shared.own[h * width], *m = &shared.inverse[h * width];
    Vec<T> inside = {};
    for (int64_t i = 0; i < width; i += WIDTH<T>) {
      const Vec<T> t = vec(v + i) - vec(own + i);
      inside += t * t * vec(m + i);
    }
    return prior.logit(h) - 0.5 * ((double(own[0]) - 2 * double(v[0])) * inverse -
                             double(sum_of<T>(inside)) * inverse * inverse + shared.log_det[h]);
  }
  void weigh_single() {
    gains.resize(latents.size());
    for (size_t s = 0; s < latents.size(); ++s) gains[s] = weigh(latents[s], projections + s * width);
  }

  // The sum of n rows, times their factors: one vector of it.
  static Vec<T> combine(const T *factors, const T *rows, int64_t apart, int64_t n) {
    Vec<T> even = {}, odd = {};
    int64_t i = 0;
    for (; i + 2 <= n; i += 2, rows += 2 * apart) even += factors[i] * vec(rows), odd += factors[i + 1] * vec(rows + apart);
    if (i < n) even += factors[i] * vec(rows);
    return even + odd;
  }

  double evaluate(SparseState &state) {
    if (state.k == 0) return state.log_joint = empty;
    if (state.k == 1) return state.log_joint = empty + gains[slot[state.on[0]]];
    const SlabFactor &factor = factor_of(state);
    double distance = factor.constant, log_prior = 0;
    for (int i = 0; i < state.k; ++i) {
      log_prior += prior.logit(state.on[i]);
      distance -= 2 * double(projections[slot[state.on[i]] * width]);
    }
    solve(factor);
    const double inside = dot(y.data(), y.data(), stride);
    return state.log_joint = empty + log_prior - 0.5 * (distance * inverse - inside + factor.log_det);
  }
  // y = L^-1 c
  void solve(const SlabFactor &factor) {
    const int64_t place = &factor - factors.data(), n = factor.state.k * r;
    const T *row = &inverses[place * depth * stride], *offset = &offsets[place * stride];
    for (int l = 0; l < factor.state.k; ++l) {
      const T *p = projections + slot[factor.state.on[l]] * width + 1;
      for (int64_t a = 0; a < r; ++a) centred[l * r + a] = p[a] - offset[l * r + a];
    }
    for (int64_t i = 0; i < stride; i += WIDTH<T>) {
      vec(&y[i]) = combine(centred.data(), row + i, stride, n) * T(inverse);
    }
  }
  // E[a | x, z] of the state: (k r,)
  void expect(const SparseState &state, T *out) {
    if (state.k == 1) {
      const int h = state.on[0];
      const T *p = projections + slot[h] * width, *own = &shared.own[h * width], *m = &shared.inverse[h * width];
      for (int64_t a = 1; a < r1; ++a) out[a - 1] = (p[a] - own[a]) * m[a] * T(inverse);
    } else if (state.k > 1) {
      const SlabFactor &factor = factor_of(state);
      solve(factor);
      const T *row = &inverses[(&factor - factors.data()) * depth * stride];
      for (int64_t j = 0; j < state.k * r; ++j) out[j] = dot(row + j * stride, y.data(), stride);
    }
  }

  SlabFactor &factor_of(const SparseState &state) {
    SlabFactor &factor = factors[state.hash() & (n_factors - 1)];
    if (!factor.is_used || !(factor.state == state)) {
      flush(factor);
      factorise(factor, state);
    }
    return factor;
  }

  // L^-1 by elimination of [M, I] row by row; the first latent's block of M is diagonal. Kept transposed.
  void factorise(SlabFactor &factor, const SparseState &state) {
    const int64_t n = state.k * r, place = &factor - factors.data(), length = 2 * stride;
    factor.state = state, factor.is_used = true, factor.has_variance = false, factor.weight = 0;
    factor.constant = 0;
    make_room(matrix, n * length);
    T *offset = &offsets[place * stride], *out = &inverses[place * depth * stride];
    std::fill_n(matrix.data(), n * length, T(0)), std::fill_n(offset, stride, T(0));
    const T scale = inverse;
    make_room(moved, r1 * width);
    for (int i = 0; i < state.k; ++i) {
      const T *own = &shared.own[state.on[i] * width], *inverse_of = &shared.inverse[state.on[i] * width];
      factor.constant += own[0];
      for (int64_t a = 0; a < r; ++a) {
        offset[i * r + a] += own[a + 1];
        matrix[(i * r + a) * length + i * r + a] = 1 / inverse_of[a + 1];
      }
      for (int j = i + 1; j < state.k; ++j) {
        T *g = moved.data();  // (r + 1, width): rows are of i
        shared.project(state.on[j], shared.vector(state.on[i], 0), r1, g, width);
        factor.constant += 2 * double(g[0]);
        for (int64_t a = 0; a < r; ++a) {
          offset[i * r + a] += g[(a + 1) * width], offset[j * r + a] += g[a + 1];
          T *to = &matrix[(i * r + a) * length + j * r];
          for (int64_t b = 0; b < r; ++b) to[b] = scale * g[(a + 1) * width + b + 1];
        }
      }
    }
    double product = 1, log_det = 0;
    for (int64_t i = 0; i < n; ++i) {
      T *row = &matrix[i * length];
      T *own = row + stride;
      const T pivot = std::max(row[i], T(1e-12)), root = 1 / std::sqrt(pivot);
      product *= double(pivot);
      if (i % 8 == 7) log_det += std::log(product), product = 1;
      own[i] = 1;
      // rows below: less row[l] / pivot times this one, on the right of l and of what has been eliminated
      const int64_t first = i < r ? r : i + 1;
      for (int64_t l = first; l < n; ++l) {
        const T f = -row[l] * root * root;
        T *other = &matrix[l * length];
        for (int64_t j = l / WIDTH<T> * WIDTH<T>; j < n; j += WIDTH<T>) vec(other + j) += f * vec(row + j);
        if (i < r)
          other[stride + i] += f;
        else
          for (int64_t j = 0; j <= i; j += WIDTH<T>) vec(other + stride + j) += f * vec(own + j);
      }
      for (int64_t j = 0; j <= i; ++j) own[j] *= root;
    }
    factor.log_det = log_det + std::log(product);
    double trace = 0;
    for (int64_t j = 0; j < n; ++j) {
      T *to = out + j * stride;
      for (int64_t i = 0; i < stride; ++i) to[i] = i < j || i >= n ? T(0) : matrix[i * length + stride + j];
      trace += dot(to, to, stride);
    }
    factor.spread = task.sigma2 * (n - trace);
  }

  // What the spread of the other latents' coefficients adds to the second moments of each latent's own part.
  void flush(SlabFactor &factor) {
    if (!factor.is_used || factor.weight == 0) return;
    const SparseState &state = factor.state;
    const int64_t n = state.k * r, m = n - r;
    const T *row = &inverses[(&factor - factors.data()) * depth * stride];
    const int64_t room = round_up(m, ROWS_AT_ONCE);
    make_room(matrix, room * m), make_room(moved, room * pitch), make_room(others, m * pitch);
    for (int i = 0; i < state.k; ++i) {
      const auto other = [&](int64_t l) { return l < i * r ? l : l + r; };
      for (int64_t a = 0; a < m; ++a) {
        std::copy_n(shared.vector(state.on[other(a) / r], 1 + other(a) % r), pitch, &others[a * pitch]);
        for (int64_t b = 0; b <= a; ++b)
          matrix[a * m + b] = matrix[b * m + a] =
              T(factor.weight) * dot(row + other(a) * stride, row + other(b) * stride, stride);
      }
      product<Shape::full>(Elements<T>{matrix.data(), m, 1}, others.data(), pitch, m, m, moved.data());
      product<Shape::upper_sum>(Elements<T>{others.data(), 1, pitch}, moved.data(), pitch, D, m, spread_of(state.on[i]));
    }
    factor.weight = 0;
  }
  T *spread_of(int h) { return &sums.spread[h * round_up(D, ROWS_AT_ONCE) * pitch]; }

  // The second moments of a latent: q left left^T of several data points at a time.
  static constexpr int64_t PENDING = 8;
  Array<T> pending, others;
  std::vector<int64_t> n_pending;
  void add_pending(int h) {
    const T *rows = &pending[h * PENDING * pitch];
    product<Shape::upper_sum>(Elements<T>{rows, 1, pitch}, rows, pitch, D, n_pending[h], spread_of(h));
    n_pending[h] = 0;
  }

  const T *variance_of(const SparseState &state) {
    if (state.k == 1) return &shared.variance[state.on[0] * pitch];
    SlabFactor &factor = factor_of(state);
    const int64_t place = &factor - factors.data(), n = state.k * r;
    T *out = &variances[place * pitch];
    if (factor.has_variance) return out;
    factor.has_variance = true;
    std::fill_n(out, pitch, T(0));
    make_room(moved, pitch);
    const T *row = &inverses[place * depth * stride];
    for (int64_t i = 0; i < n; ++i) {
      std::fill_n(moved.data(), pitch, T(0));
      for (int64_t j = 0; j <= i; ++j) accumulate(moved.data(), row[j * stride + i], shared.clean_vector(state.on[j / r], j % r + 1));
      for (int64_t d = 0; d < pitch; ++d) out[d] += moved[d] * moved[d];
    }
    return out;
  }
  // out += factor * row, of `pitch` values
  void accumulate(T *out, T factor, const T *row) const {
    for (int64_t d = 0; d < pitch; d += WIDTH<T>) vec(out + d) += factor * vec(row + d);
  }

  bool is_known(const SparseState &state) const {
    for (auto &other : population)
      if (other == state) return true;
    return false;
  }
  void consider(SparseState state) {
    if (is_known(state)) return;
    evaluate(state);
    best = population.empty() ? state.log_joint : std::max(best, state.log_joint);
    population.push_back(state);
  }
  double best = 0;

  // The states of one latent, all of which are known.
  void propose_first() {
    order.clear();
    for (size_t s = 0; s < latents.size(); ++s)
      if (empty + gains[s] >= best - task.far_below) order.push_back({gains[s], latents[s]});
    const size_t n = sort_order();
    for (size_t i = 0; i < n; ++i) consider(SparseState().with(order[i].second));
  }
  size_t sort_order() {
    const size_t n = std::min<size_t>(task.n_children, order.size());
    std::partial_sort(order.begin(), order.begin() + n, order.end(), [](auto &a, auto &b) { return a.first > b.first; });
    return n;
  }

  // Children of a state with one more latent: those that explain best what it leaves, as if its coefficients were known.
  void propose(SparseState base) {
    evaluate(base);
    T *c = coefficients.data();
    expect(base, c);
    make_room(moved, pitch + width);
    T *left = moved.data(), *v = left + pitch;
    std::copy_n(residual, pitch, left);
    for (int j = 0; j < base.k; ++j) {
      const T *w = shared.vector(base.on[j], 0);
      for (int64_t d = 0; d < pitch; d += WIDTH<T>)
        vec(left + d) -= vec(w + d) + combine(c + j * r, w + pitch + d, pitch, r);
    }
    order.clear();
    for (size_t s = 0; s < latents.size(); ++s) {
      const int h = latents[s];
      if (base.has(h)) continue;
      shared.project(h, left, 1, v, 0);
      const double gain = weigh(h, v);
      if (base.log_joint + gain >= best - task.far_below) order.push_back({gain, h});
    }
    const size_t n = sort_order();
    for (size_t i = 0; i < n && base.log_joint + order[i].first >= best - task.far_below; ++i)
      consider(base.with(order[i].second));
  }

  void finish(int64_t n) {
    const int64_t n_bytes = (H + 7) / 8, S = task.n_states;
    const double top = population[0].log_joint;
    double total = 0;
    for (auto &state : population) total += std::exp(state.log_joint - top);
    sums.elbo += top + std::log(total);
    uint8_t *out = task.new_packed + n * S * n_bytes;
    std::memset(out, 0, S * n_bytes);
    for (int64_t s = 0; s < S; ++s) {
      const SparseState &state = population[s];
      double log_prior = prior.rest;
      for (int i = 0; i < state.k; ++i) {
        out[s * n_bytes + state.on[i] / 8] |= 1 << (state.on[i] % 8);
        log_prior += prior.logit(state.on[i]);
      }
      task.log_joint[n * S + s] = state.log_joint, task.log_prior[n * S + s] = log_prior;
    }
    const bool learns = !sums.spread.empty();
    if (!learns && !task.mean) return;
    T *mean = task.mean ? static_cast<T *>(task.mean) + n * D : nullptr;
    T *variance = task.variance ? static_cast<T *>(task.variance) + n * D : nullptr;
    if (mean) std::fill_n(mean, D, T(0));
    if (variance) std::fill_n(variance, D, T(0));
    double kept = 0;
    for (auto &state : population) {
      const double q = std::exp(state.log_joint - top) / total;
      if (q >= task.prune) kept += q;
    }
    make_room(parts, (task.most_found + 2) * pitch);
    for (auto &state : population) {
      const double share = std::exp(state.log_joint - top) / total;
      if (share >= task.prune) add(state, share / kept, mean, variance);
    }
    if (mean)
      for (int64_t d = 0; d < D; ++d) {
        if (variance) variance[d] = std::max(variance[d] - mean[d] * mean[d], T(0));
        mean[d] += clean_bias[d];
      }
  }

  // Counts in a state with its share q.
  void add(const SparseState &state, T q, T *mean, T *variance) {
    const int k = state.k;
    expect(state, coefficients.data());
    T *sum = &parts[task.most_found * pitch], *left = sum + pitch;
    std::fill_n(sum, pitch, T(0));
    for (int i = 0; i < k; ++i) {
      const T *w = mean ? shared.clean_vector(state.on[i], 0) : shared.vector(state.on[i], 0), *c = &coefficients[i * r];
      T *part = &parts[i * pitch];  // without the mean
      for (int64_t d = 0; d < pitch; d += WIDTH<T>) {
        vec(part + d) = combine(c, w + pitch + d, pitch, r);
        vec(sum + d) += vec(w + d) + vec(part + d);
      }
    }
    if (mean)
      for (int64_t d = 0; d < D; ++d) mean[d] += q * sum[d];
    if (variance) {
      const T *own = k ? variance_of(state) : nullptr;
      for (int64_t d = 0; d < D; ++d) variance[d] += q * (sum[d] * sum[d] + (own ? own[d] : T(0)));
    }
    if (sums.spread.empty()) return;
    for (int64_t d = 0; d < pitch; d += WIDTH<T>) vec(left + d) = vec(residual + d) - vec(sum + d);
    double spread = k == 1 ? task.sigma2 * shared.spread[state.on[0]] : 0;
    if (k > 1) {
      SlabFactor &factor = factor_of(state);
      factor.weight += q, spread = factor.spread;
    }
    sums.error += q * (double(dot(left, left, pitch)) + spread);
    double *active = sums.active + (task.cell ? prior.cell * H : 0);
    const T root = std::sqrt(q);
    for (int i = 0; i < k; ++i) {
      const int h = state.on[i];
      active[h] += q, sums.together[h] += q * k;
      T *part = &parts[i * pitch], *shift = &sums.shift[h * pitch], *row = &pending[(h * PENDING + n_pending[h]) * pitch];
      for (int64_t d = 0; d < pitch; d += WIDTH<T>) {
        const Vec<T> own = vec(part + d) + vec(left + d);
        vec(shift + d) += q * own, vec(row + d) = root * own;
      }
      if (++n_pending[h] == PENDING) add_pending(h);
    }
  }
  Array<T> parts;
};

}  // namespace
