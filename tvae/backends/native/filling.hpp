// Conditional Gaussians of local groups of which some values are missing, see restoration/non_local/local_filling.py.
//
// For each pixel the rows o of K that know it are eliminated by L D L^T = K_oo + s I, along with all columns of K and with
// what is known, y: with B = L^-1 [K_o: | y_o - c],
//
//   E[x | y_o] = c + sum_k B_k: B_ky / D_k,       diag Cov[x | y_o] = diag K - sum_k B_k:^2 / D_k
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tasks.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace {

class Filling {
  static constexpr int64_t W = WIDTH<float>;
  const FillingTask &task;
  const float s;
  const int64_t n, size, width, stride;  // patches of a group, values of each; rows of K with y, padded; of patches
  Array<float> pilot, covariance, left, right, total;
  std::vector<int64_t> known;

  void add(float *row, float factor, const float *other, int64_t from, int64_t to) {
    for (int64_t i = from / W * W; i < to; i += W) vec(row + i) += factor * vec(other + i);
  }

public:
  explicit Filling(const FillingTask &task)
      : task(task), s(task.s), n(task.n_patches), size(task.n_values), width(round_up(n + 1, W)),
        stride(round_up(size, W)), pilot(n * stride), covariance(n * width), left(n * width), right(n * width), total(2 * width) {}

  void group(int64_t g) {
    const int64_t first = g * n * size;
    double sum = 0;
    for (int64_t i = 0; i < n * size; ++i) sum += task.pilot[first + i];
    const float centre = sum / (n * size);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < size; ++d) pilot[i * stride + d] = task.pilot[first + i * size + d] - centre;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        Vec<float> products = {};
        for (int64_t d = 0; d < stride; d += W) products += vec(&pilot[i * stride + d]) * vec(&pilot[j * stride + d]);
        covariance[i * width + j] = covariance[j * width + i] = sum_of<float>(products) / size;
      }
    for (int64_t d = 0; d < size; ++d) value(first + d, centre);
  }

private:
  // One pixel of all patches of a group; `at`: of the first of them.
  void value(int64_t at, float centre) {
    known.clear();
    for (int64_t i = 0; i < n; ++i)
      if (task.observed[at + i * size]) known.push_back(i);
    const int64_t m = known.size();
    for (int64_t k = 0; k < m; ++k) {
      const float *row = &covariance[known[k] * width];
      float *to_left = &left[k * width], *to_right = &right[k * width];
      std::copy(row, row + width, to_right);
      to_right[n] = task.y[at + known[k] * size] - centre;
      for (int64_t l = 0; l < m; ++l) to_left[l] = row[known[l]];
      to_left[k] += s;
    }
    float *mean = total.data(), *explained = mean + width;
    std::fill(total.begin(), total.end(), 0.f);
    for (int64_t k = 0; k < m; ++k) {
      const float *own = &left[k * width], *of_own = &right[k * width];
      const float over = 1 / std::max(own[k], s), of_mean = of_own[n] * over;
      for (int64_t i = k + 1; i < m; ++i) {
        const float factor = -own[i] * over;
        add(&left[i * width], factor, own, i, m);
        add(&right[i * width], factor, of_own, 0, width);
      }
      for (int64_t c = 0; c < width; c += W) {
        vec(mean + c) += of_mean * vec(of_own + c);
        vec(explained + c) += over * vec(of_own + c) * vec(of_own + c);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      task.mean[at + i * size] = centre + mean[i];
      task.variance[at + i * size] = std::max(covariance[i * width + i] - explained[i], 0.f);
    }
  }
};

void run_filling(const FillingTask &task) {
  constexpr int64_t AT_ONCE = 32;
  Phases phases;
  phases.add((task.n_groups + AT_ONCE - 1) / AT_ONCE, [&](int64_t part) {
    Filling filling(task);
    for (int64_t g = part * AT_ONCE; g < std::min((part + 1) * AT_ONCE, task.n_groups); ++g) filling.group(g);
  });
  phases.run(task.n_threads);
}

}  // namespace
