// The old states of a group of data points, each different one decoded once: mu(z) does not depend on the data point.
//
// Data points share states, most of them at the start of training. Threads enter states side by side; which of several
// equal ones comes first is chance, and makes no difference.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "prior.hpp"
#include "rows.hpp"
#include "tasks.hpp"
#include "vectors.hpp"

namespace {

template <class T> class KnownStates {
  const EStepTask *task;
  int64_t n_bytes, mu_stride, n_slots = 0;
  std::unique_ptr<std::atomic<int32_t>[]> slots;  // hash table of codes: 1 + place of the state, 0 if empty
  Array<int32_t> equal;                           // (n,): place of the first state that is equal
  Array<int32_t> row;                             // (n,): where it is decoded, for first states
  Array<int32_t> first;                           // (n_rows,): place of the state that is decoded there
  Array<T> mu;                                    // (n_rows, mu_stride)
  std::atomic<int64_t> n_different{0};

public:
  Prior<T> prior;
  Array<Word> states;       // (n, n_words)
  Array<uint64_t> code;     // (n,)
  Array<double> log_prior;  // (n,)
  int64_t n_words;

  // Room for n states.
  void prepare(const EStepTask &task, int64_t n, int64_t mu_stride) {
    this->task = &task, this->mu_stride = mu_stride;
    prior.prepare(task);
    n_bytes = (task.n_latents + 7) / 8, n_words = (task.n_latents + 63) / 64;
    int64_t wanted = 1;
    while (wanted < 2 * n) wanted *= 2;
    if (wanted != n_slots) slots.reset(new std::atomic<int32_t>[wanted]), n_slots = wanted;
    for (auto *array : {&equal, &row, &first}) array->resize(n);
    states.resize(n * n_words), code.resize(n), log_prior.resize(n), mu.resize(n * mu_stride);
  }

  void forget() {
    for (int64_t i = 0; i < n_slots; ++i) slots[i].store(0, std::memory_order_relaxed);
    n_different = 0;
  }
  int64_t n_rows() const { return n_different; }
  const Word *state(int64_t its_row) const { return states.data() + first[its_row] * n_words; }
  T *mu_row(int64_t its_row) { return mu.data() + its_row * mu_stride; }
  const T *mu_of(int64_t place) { return mu_row(row[equal[place]]); }

  // Enter `count` packed states at the places from `place` on; `ones`: room for a list of latents.
  void enter(int32_t place, int64_t count, const uint8_t *packed, int32_t *ones) {
    int64_t n_first = 0;
    for (int32_t next = place; next < place + count; ++next, packed += n_bytes) {
      read(next, packed, ones);
      equal[next] = find_or_claim(next);
      n_first += equal[next] == next;
    }
    int64_t its_row = n_different.fetch_add(n_first);  // once for all of them: threads would wait for each other
    for (int32_t next = place; next < place + count; ++next)
      if (equal[next] == next) row[next] = its_row, first[its_row++] = next;
  }

  // mu of the state with this code, null if it is not known.
  const T *find(uint64_t wanted) {
    for (uint64_t slot = wanted >> 32;; ++slot) {
      const int32_t found = slots[slot & (n_slots - 1)].load(std::memory_order_relaxed);
      if (!found) return nullptr;
      if (code[found - 1] == wanted) return mu_row(row[found - 1]);
    }
  }

private:
  void read(int32_t place, const uint8_t *packed, int32_t *ones) {
    Word *state = states.data() + place * n_words;
    state[n_words - 1] = 0;
    std::memcpy(state, packed, n_bytes);
    const int64_t n_ones = list_ones(state, n_words, ones);
    uint64_t sum = 0;
    double its_prior = prior.log_off;
    for (int64_t i = 0; i < n_ones; ++i) sum += task->numbers[ones[i]], its_prior += prior.logit[ones[i]];
    code[place] = sum, log_prior[place] = its_prior;
  }

  // The place of the first state with the code of the one at `place`; if there is none, that is the first.
  int32_t find_or_claim(int32_t place) {
    const uint64_t wanted = code[place];
    for (uint64_t slot = wanted >> 32;; ++slot) {
      auto &entry = slots[slot & (n_slots - 1)];
      int32_t found = entry.load(std::memory_order_acquire);
      if (!found && entry.compare_exchange_strong(found, place + 1, std::memory_order_acq_rel)) return place;
      if (code[found - 1] == wanted) return found - 1;
    }
  }
};

}  // namespace
