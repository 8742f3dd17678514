// The states found for one data point: the old ones, then every new one once, in the order found.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "decoding.hpp"
#include "known_states.hpp"
#include "order.hpp"
#include "point.hpp"
#include "selection.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

template <class T> class Population {
  using Rank = decltype(rank(T()));
  const EStepTask *task;
  const T *logit;
  int64_t n_bytes, n_words, mu_stride, n = 0, n_evaluated = 0, n_decoded = 0;
  KnownStates<T> *known;
  Decoding<T> *decoding;
  Point<T> point;
  Array<Word> states;        // (n, n_words)
  Array<uint64_t> code;      // (n,)
  Array<double> log_prior;   // (n,)
  Array<T> error;            // (n,)
  Array<const T *> mu;       // (n,): where the decoder's output is
  Array<T> own_mu;           // (n_decoded, mu_stride): of the new states that are not known
  Array<int32_t> undecoded;  // places of states to be decoded
  Array<Rank> ranks;         // (n,)
  Array<int32_t> slots;      // hash table of codes: 1 + place of the state, 0 if empty
  Array<int32_t> kept;       // (S,): places of the fittest, once written

public:
  Array<T> fitness;  // (n,): the log-joint

  void prepare(const EStepTask &task, const std::vector<Layer<T>> &layers, KnownStates<T> &known) {
    this->task = &task, this->known = &known;
    logit = known.prior.logit.data();
    n_bytes = (task.n_latents + 7) / 8, n_words = known.n_words, mu_stride = output_stride(task.decoder, layers);
    const int64_t n_new = task.n_generations * task.n_parents * task.n_children, n_max = task.n_states + n_new;
    int64_t n_slots = 1;
    while (n_slots < 2 * n_max) n_slots *= 2;
    states.resize(n_max * n_words), code.resize(n_max), log_prior.resize(n_max), mu.resize(n_max);
    error.resize(n_max), fitness.resize(n_max), ranks.resize(n_max), slots.resize(n_slots);
    own_mu.resize(n_new * mu_stride), undecoded.reserve(n_new), kept.resize(task.n_states);
    decode_here(layers);
    point.prepare(task, mu_stride);
  }

  // From now on with the memory of the calling thread.
  void decode_here(const std::vector<Layer<T>> &layers) {
    decoding = &decoding_of_thread<T>();
    decoding->prepare(task->decoder, layers);
  }

  // Start again with the old states of a data point, at the places from 0 to S - 1; they are `known` from `place` on.
  void read(int64_t which, int64_t place) {
    const int64_t n_states = task->n_states;
    point.read(which);
    std::fill(slots.begin(), slots.end(), 0);
    std::copy_n(known->states.data() + place * n_words, n_states * n_words, states.data());
    std::copy_n(known->code.data() + place, n_states, code.data());
    std::copy_n(known->log_prior.data() + place, n_states, log_prior.data());
    n_evaluated = n_decoded = 0;
    for (n = 0; n < n_states; ++n) {
      mu[n] = known->mu_of(place + n);
      find_or_claim(code[n], n);
    }
    evaluate();
  }

  // The place of a child of the state at `parent`. A state that this data point has already keeps its place.
  int32_t mutate(int32_t parent, const int64_t *flips) {
    Word *child = states.data() + n * n_words;
    for (int64_t i = 0; i < n_words; ++i) child[i] = state(parent)[i];
    uint64_t its_code = code[parent];
    double prior = log_prior[parent];
    for (int64_t i = 0; i < task->n_flips; ++i) {
      const Word bit = Word(1) << flips[i] % 64;
      const bool is_on = (child[flips[i] / 64] ^= bit) & bit;
      its_code += is_on ? task->numbers[flips[i]] : -task->numbers[flips[i]];
      prior += is_on ? logit[flips[i]] : -logit[flips[i]];
    }
    const int32_t found = find_or_claim(its_code, n);
    if (found < n) return found;
    code[n] = its_code, log_prior[n] = prior, mu[n] = known->find(its_code);
    if (!mu[n]) undecoded.push_back(n);
    return n++;
  }

  // Evaluate the states that were added since the last time.
  void evaluate() {
    T *to = own_mu.data() + n_decoded * mu_stride;
    decoding->decode(undecoded.size(), [&](int64_t i) { return state(undecoded[i]); }, to);
    for (const int32_t place : undecoded) mu[place] = own_mu.data() + n_decoded++ * mu_stride;
    undecoded.clear();
    for (; n_evaluated < n; ++n_evaluated) {
      error[n_evaluated] = point.error(mu[n_evaluated]);
      fitness[n_evaluated] = point.log_joint(log_prior[n_evaluated], error[n_evaluated]);
    }
  }

  // Keep the S fittest, of equally fit ones those found first; for AUTHORS the fittest last.
  void write(int64_t which) {
    const int64_t n_states = task->n_states;
    for (int64_t i = 0; i < n; ++i) ranks[i] = rank(fitness[i]);
    const Rank least = threshold(ranks.data(), n, n_states);
    int64_t n_tied = n_states;
    for (int64_t i = 0; i < n; ++i) n_tied -= ranks[i] > least;
    int64_t to = which * n_states, n_new = 0, n_kept = 0;
    for (int64_t i = 0; i < n; ++i)
      if (ranks[i] > least || (ranks[i] == least && n_tied-- > 0)) kept[n_kept++] = i;
    if (task->selection == AUTHORS)
      std::stable_sort(kept.begin(), kept.end(), [&](int32_t a, int32_t b) { return ranks[a] < ranks[b]; });
    for (const int32_t i : kept) {
      std::memcpy(task->new_packed + to * n_bytes, state(i), n_bytes);
      static_cast<T *>(task->error)[to] = error[i];
      static_cast<T *>(task->log_joint)[to++] = fitness[i];
      n_new += i >= n_states;
    }
    task->n_accepted[which] = n_new;
  }

  // The kept states that matter, see inference/posterior.py: those with q of at least prune / S, or all.
  void weigh(double prune, Significant<T> &found) const {
    T highest = fitness[kept[0]];
    for (const int32_t place : kept) highest = std::max(highest, fitness[place]);
    double sum = 0, sum_kept = 0, errors = 0;
    found.clear();
    for (const int32_t place : kept) {
      const T share = std::exp(fitness[place] - highest);
      sum += share, errors += static_cast<double>(share) * error[place];
    }
    const double least = prune / kept.size() * sum;
    for (const int32_t place : kept) {
      const T share = std::exp(fitness[place] - highest);
      if (prune > 0 && !(share >= least)) continue;
      found.add(reinterpret_cast<const uint8_t *>(state(place)), n_bytes, share, mu[place], mu_stride);
      sum_kept += share;
    }
    for (auto &weight : found.weight) weight /= sum_kept;
    found.elbo = highest + std::log(sum), found.error = errors / sum, found.n_observed = point.count_observed();
  }

private:
  const Word *state(int64_t place) const { return states.data() + place * n_words; }

  // The place of the state with this code; if there is none, `place` becomes its place.
  int32_t find_or_claim(uint64_t wanted, int32_t place) {
    const uint64_t last = slots.size() - 1;
    uint64_t slot = wanted >> 32 & last;
    for (; slots[slot]; slot = (slot + 1) & last)
      if (code[slots[slot] - 1] == wanted) return slots[slot] - 1;
    slots[slot] = place + 1;
    return place;
  }
};

}  // namespace
