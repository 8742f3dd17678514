// What the searches of slab.hpp and slab_whole.hpp have in common: sparse states, products of all latents, the prior.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "dense.hpp"
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
  uint16_t on[MOST_ON] = {};  // in increasing order, then zeros
  double log_joint = 0;
  bool operator==(const SparseState &o) const { return k == o.k && !std::memcmp(on, o.on, sizeof on); }
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
    s.on[s.k] = 0;
    return s;
  }
  static int count(const uint8_t *packed, int64_t n_bytes) {
    int total = 0;
    for (int64_t i = 0; i < n_bytes; i += 8) {
      Word word = 0;
      std::memcpy(&word, packed + i, std::min<int64_t>(8, n_bytes - i));
      total += __builtin_popcountll(word);
    }
    return total;
  }
  // Of no more than MOST_ON latents.
  static SparseState unpack(const uint8_t *packed, int64_t n_bytes) {
    SparseState s;
    for (int64_t i = 0; i < n_bytes; i += 8) {
      Word word = 0;
      std::memcpy(&word, packed + i, std::min<int64_t>(8, n_bytes - i));
      for (; word; word &= word - 1) s.on[s.k++] = 8 * i + __builtin_ctzll(word);
    }
    return s;
  }
  uint64_t hash() const {
    Word words[2];
    std::memcpy(words, on, sizeof words);
    const uint64_t mixed = (words[0] ^ (words[1] * 0xD6E8FEB86659FD93u) ^ k) * 0x9E3779B97F4A7C15u;
    return mixed ^ mixed >> 32;
  }
};
static_assert(sizeof SparseState::on == 2 * sizeof(Word), "hash");

// What all data points share: V^T with rows padded to whole vectors, and where every value is observed, of
// M_h = I + U_h U_h^T / sigma2, which is then diagonal because the rows of U_h are orthogonal, its inverse and
// log-determinant.
template <class T> struct SlabShared {
  const int64_t H, D, r1, width, pitch;  // of rows of r + 1 and of D values
  Array<T> transposed, own, inverse;    // (H, D, width); (H, width): products of w_h with V_h; the inverse, zero for w_h
  Array<T> rows;                        // (H, r + 1, pitch): V_h, rows padded with zeros, where every value is observed
  Array<T> clean;                       // the same of what clean values are made of, if they are others
  Array<T> variance;                    // (H, pitch): diagonal of U_h^T M_h^-1 U_h, of clean values
  std::vector<double> log_det, spread;  // (H,); its trace over sigma2

  SlabShared(const SlabTask &task, Phases &phases)
      : H(task.n_latents), D(task.n_values), r1(task.rank + 1), width(round_up(r1, WIDTH<T>)), pitch(round_up(D, WIDTH<T>)) {
    transposed.assign(H * D * width, T(0)), own.assign(H * width, T(0)), inverse.assign(H * width, T(0));
    variance.assign(H * pitch, T(0)), rows.assign(task.observed ? 0 : H * r1 * pitch, T(0)), log_det.assign(H, 0), spread.assign(H, 0);
    const T *const vectors = static_cast<const T *>(task.vectors);
    const T *const of_clean = static_cast<const T *>(task.clean_vectors ? task.clean_vectors : task.vectors);
    if (task.clean_vectors) clean.assign(H * r1 * pitch, T(0));
    const double sigma2 = task.sigma2;
    phases.add(H, [=](int64_t h) {
      const T *v = vectors + h * r1 * D, *c = of_clean + h * r1 * D;
      if (!rows.empty())
        for (int64_t a = 0; a < r1; ++a) std::copy_n(v + a * D, D, &rows[(h * r1 + a) * pitch]);
      if (!clean.empty())
        for (int64_t a = 0; a < r1; ++a) std::copy_n(c + a * D, D, &clean[(h * r1 + a) * pitch]);
      for (int64_t a = 0; a < r1; ++a)
        for (int64_t d = 0; d < D; ++d) transposed[(h * D + d) * width + a] = v[a * D + d];
      for (int64_t a = 0; a < r1; ++a) own[h * width + a] = dot(v, v + a * D, D);
      for (int64_t a = 1; a < r1; ++a) {
        const T m = 1 + dot(v + a * D, v + a * D, D) / T(sigma2);
        inverse[h * width + a] = 1 / m;
        log_det[h] += std::log(double(m)), spread[h] += 1 - 1 / double(m);
        for (int64_t d = 0; d < D; ++d) variance[h * pitch + d] += c[a * D + d] * c[a * D + d] / m;
      }
    });
  }
  SlabShared(const SlabShared &) = delete;

  const T *vector(int h, int64_t a) const { return &rows[(h * r1 + a) * pitch]; }
  const T *clean_vector(int h, int64_t a) const { return clean.empty() ? vector(h, a) : &clean[(h * r1 + a) * pitch]; }

  // out (r1, r1) = V_h V_j^T over the values in `place`
  void gram_over(const std::vector<int32_t> &place, int64_t h, int64_t j, T *out) const {
    constexpr int64_t W = WIDTH<T>, ROWS = 4;
    const T *a = &transposed[h * D * width], *b = &transposed[j * D * width];
    for (int64_t first = 0; first < r1; first += ROWS)
      for (int64_t column = h == j ? first / W * W : 0; column < r1; column += W) {
        Vec<T> sum[ROWS] = {};
        for (const int64_t d : place) {
          const T *row = a + d * width + first;
          const Vec<T> other = vec(b + d * width + column);
          for (int64_t u = 0; u < ROWS; ++u) sum[u] += row[u] * other;
        }
        for (int64_t u = 0; u < std::min(ROWS, r1 - first); ++u)
          for (int64_t l = 0; l < std::min(W, r1 - column); ++l) out[(first + u) * r1 + column + l] = sum[u][l];
      }
    if (h == j)
      for (int64_t u = 1; u < r1; ++u)
        for (int64_t l = 0; l < u; ++l) out[u * r1 + l] = out[l * r1 + u];
  }
  // out (n, width), rows `apart` = x (n, pitch) V_h^T. Each row is the same whatever the others are.
  void project(int64_t h, const T *x, int64_t n, T *out, int64_t apart) const {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) project_rows<4>(h, x + i * pitch, out + i * apart, apart);
    for (; i < n; ++i) project_rows<1>(h, x + i * pitch, out + i * apart, apart);
  }
  template <int N> void project_rows(int64_t h, const T *x, T *out, int64_t apart) const {
    const T *row = &transposed[h * D * width];
    for (int64_t i = 0; i < width; i += WIDTH<T>) {
      Vec<T> even[N] = {}, odd[N] = {};
      int64_t d = 0;
      for (; d + 2 <= D; d += 2) {
        const Vec<T> a = vec(row + d * width + i), b = vec(row + (d + 1) * width + i);
        for (int p = 0; p < N; ++p) even[p] += x[p * pitch + d] * a, odd[p] += x[p * pitch + d + 1] * b;
      }
      if (d < D)
        for (int p = 0; p < N; ++p) even[p] += x[p * pitch + d] * vec(row + d * width + i);
      for (int p = 0; p < N; ++p) vec(out + p * apart + i) = even[p] + odd[p];
    }
  }
};

// The prior of a cell: log p(z) = rest + the logits of the latents that are on; those that are tried.
template <class T> class CellPrior {
  const T *pi;
  std::vector<double> logits;  // those that were asked for, the others NaN: most latents are not used in a cell

public:
  int64_t cell = -1;
  double rest = 0;
  std::vector<int32_t> candidates;  // of highest prior, in increasing order

  void enter(const SlabTask &task, int64_t next) {
    if (next == cell) return;
    constexpr int64_t AT_ONCE = 32;  // factors of at least 1e-6 each
    const int64_t H = task.n_latents, n = task.n_generations > 0 ? std::min(task.n_candidates, H) : 0;
    pi = static_cast<const T *>(task.pi) + next * H;
    cell = next, rest = 0, logits.assign(H, NAN), candidates.resize(H);
    for (int64_t first = 0; first < H; first += AT_ONCE) {
      double all_off = 1;
      for (int64_t h = first; h < std::min(first + AT_ONCE, H); ++h) all_off *= 1 - double(pi[h]), candidates[h] = h;
      rest += std::log(all_off);
    }
    if (0 < n && n < H) {
      std::nth_element(candidates.begin(), candidates.begin() + n, candidates.end(),
                       [this](int a, int b) { return pi[a] != pi[b] ? pi[a] > pi[b] : a < b; });
      std::sort(candidates.begin(), candidates.begin() + n);
    }
    candidates.resize(n);
  }
  double logit(int64_t h) {
    if (std::isnan(logits[h])) logits[h] = std::log(double(pi[h]) / (1 - double(pi[h])));
    return logits[h];
  }
};

// Where the sums of the M-step go: those of one part of the data points.
template <class T> struct SlabSums {
  double error = 0, elbo = 0;
  double *active = nullptr;  // (cells, H), or (H,) where there is one for all
  std::vector<double> together;  // (H,): q times the number of latents on
  Array<T> shift, spread;    // (H, pitch), (H, rows, pitch), upper triangles; nothing: nothing is learned
};

}  // namespace
