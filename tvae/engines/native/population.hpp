// The states found for one data point: the old ones, then every new one once, in the order found.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "evaluation.hpp"
#include "layers.hpp"
#include "order.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

template <class T> class Population {
  using Rank = decltype(rank(T()));
  const EStepTask *task;
  const T *logit;
  int64_t n_bytes, n = 0, n_evaluated = 0;
  Evaluation<T> evaluation;
  Array<uint8_t> states;    // (n, n_bytes)
  Array<uint64_t> code;     // (n,)
  Array<double> log_prior;  // (n,)
  Array<T> error;           // (n,)
  Array<Rank> ranks;        // (n,)
  Array<int32_t> slots;     // hash table of codes: 1 + place of the state, 0 if empty
  Array<int32_t> ones;      // latents that are on

public:
  Array<T> fitness;  // (n,): the log-joint

  void prepare(const EStepTask &task, const std::vector<Layer<T>> &layers) {
    this->task = &task;
    logit = static_cast<const T *>(task.logit);
    n_bytes = (task.n_latents + 7) / 8;
    const int64_t n_max = task.n_states + task.n_generations * task.n_parents * task.n_children;
    int64_t n_slots = 1;
    while (n_slots < 2 * n_max) n_slots *= 2;
    states.resize(n_max * n_bytes), code.resize(n_max), log_prior.resize(n_max);
    error.resize(n_max), fitness.resize(n_max), ranks.resize(n_max), slots.resize(n_slots);
    ones.resize(8 * n_bytes);
    evaluation.prepare(task, layers);
  }

  // Start again with the old states of a data point, at the places from 0 to S - 1.
  void read(int64_t point) {
    const int64_t n_states = task->n_states;
    evaluation.read_point(point);
    std::fill(slots.begin(), slots.end(), 0);
    std::copy_n(task->packed + point * n_states * n_bytes, n_states * n_bytes, states.data());
    n = n_evaluated = 0;
    for (int64_t s = 0; s < n_states; ++s) {
      uint64_t sum = 0;
      double prior = task->log_off;
      const int64_t n_ones = list_ones(state(s), n_bytes, ones.data());
      for (int64_t i = 0; i < n_ones; ++i) {
        sum += task->numbers[ones[i]];
        prior += logit[ones[i]];
      }
      evaluation.sum_first(ones.data(), n_ones, add(sum, prior));
      find_or_claim(sum, s);
    }
    evaluate();
  }

  void read_parent(int32_t place) {
    const int64_t n_ones = list_ones(state(place), n_bytes, ones.data());
    evaluation.read_parent(ones.data(), n_ones);
  }

  // The place of a child of the parent read last, which is at `place`. A state that is known keeps its place.
  int32_t mutate(int32_t place, const int64_t *flips) {
    uint8_t *child = states.data() + n * n_bytes;
    std::copy_n(state(place), n_bytes, child);
    uint64_t its_code = code[place];
    double prior = log_prior[place];
    for (int64_t i = 0; i < task->n_flips; ++i) {
      const bool was_off = !is_on(child, flips[i]);
      child[flips[i] / 8] ^= 1 << flips[i] % 8;
      its_code += was_off ? task->numbers[flips[i]] : -task->numbers[flips[i]];
      prior += was_off ? logit[flips[i]] : -logit[flips[i]];
    }
    const int32_t found = find_or_claim(its_code, n);
    if (found == n) evaluation.inherit(child, flips, add(its_code, prior));
    return found;
  }

  // Evaluate the states that were added since the last time.
  void evaluate() {
    const int64_t first = n_evaluated;
    n_evaluated = n;
    evaluation.evaluate(n - first, log_prior.data() + first, error.data() + first, fitness.data() + first);
  }

  // Keep the S fittest, of equally fit ones those found first.
  void write(int64_t point) {
    const int64_t n_states = task->n_states;
    for (int64_t i = 0; i < n; ++i) ranks[i] = rank(fitness[i]);
    const Rank least = threshold(ranks.data(), n, n_states);
    int64_t n_tied = n_states;
    for (int64_t i = 0; i < n; ++i) n_tied -= ranks[i] > least;
    int64_t to = point * n_states, n_new = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (ranks[i] < least || (ranks[i] == least && n_tied-- <= 0)) continue;
      std::copy_n(state(i), n_bytes, task->new_packed + to * n_bytes);
      static_cast<T *>(task->error)[to] = error[i];
      static_cast<T *>(task->log_joint)[to++] = fitness[i];
      n_new += i >= n_states;
    }
    task->n_accepted[point] = n_new;
  }

private:
  const uint8_t *state(int64_t place) const { return states.data() + place * n_bytes; }

  // The place of the state with this code; if there is none, `place` becomes its place.
  int32_t find_or_claim(uint64_t wanted, int32_t place) {
    const uint64_t last = slots.size() - 1;
    uint64_t slot = wanted >> 32 & last;
    for (; slots[slot]; slot = (slot + 1) & last)
      if (code[slots[slot] - 1] == wanted) return slots[slot] - 1;
    slots[slot] = place + 1;
    return place;
  }

  // Add the state at place n; returns where its first sums go.
  T *add(uint64_t its_code, double its_log_prior) {
    if (n - n_evaluated == BLOCK) evaluate();
    code[n] = its_code, log_prior[n] = its_log_prior;
    return evaluation.first_sums(n++ - n_evaluated);
  }
};

}  // namespace
