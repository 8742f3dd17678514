// The E-step, the decoder's gradient, Adam and products with packed states, in plain C++ behind a C interface.
//
// Every layer is a sum of rows: of those whose latents are on in the first, of those whose hidden unit is not zero, times
// its value, in the others. A set of 64 inputs is a word, and the loop runs over the word's ones, so that the cost is
// proportional to what is on. Each data point is computed by one thread in one order: results do not depend on the
// number of threads. Compiled by kernel.py, called by native.py and adam.py.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using Word = uint64_t;

constexpr int BLOCK = 64;       // states that share a pass over a layer's weights
constexpr int PANEL_MAX = 12;   // vectors of outputs summed up in registers: 16 there are with AVX2

template <class T> struct Vectors {
  typedef T Vec __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
  static constexpr int width = 32 / sizeof(T);
};
template <class T> using Vec = typename Vectors<T>::Vec;
template <class T> constexpr int WIDTH = Vectors<T>::width;
template <class T> Vec<T> &vec(T *p) { return *reinterpret_cast<Vec<T> *>(p); }
template <class T> const Vec<T> &vec(const T *p) { return *reinterpret_cast<const Vec<T> *>(p); }

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// ---- threads: the OpenMP pool that torch has started, whose entry point kernel.py hands over

using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);
Parallel parallel = nullptr;

// Work in phases, each a number of tasks that threads take one by one; a phase begins when the one before is done. All
// within one call of the pool: a call costs microseconds, but milliseconds where another process holds a core.
class Phases {
  struct Phase {
    int64_t count;
    std::function<void(int64_t)> work;
    std::atomic<int64_t> next{0}, done{0};
    Phase(int64_t count, std::function<void(int64_t)> work) : count(count), work(std::move(work)) {}
  };
  std::deque<Phase> phases;
  int64_t most = 0;

  static void work_through(void *self) {
    for (auto &phase : static_cast<Phases *>(self)->phases) {
      for (int64_t i; (i = phase.next++) < phase.count; ++phase.done) phase.work(i);
      while (phase.done < phase.count) std::this_thread::yield();
    }
  }

public:
  void add(int64_t count, std::function<void(int64_t)> work) {
    phases.emplace_back(count, std::move(work));
    most = std::max(most, count);
  }
  void run(int64_t n_threads) {
    if (parallel && n_threads > 1 && most > 1)
      parallel(work_through, this, static_cast<unsigned>(n_threads), 0);
    else
      work_through(this);
  }
};

template <class T> struct Aligned {  // to cache lines: vectors then never straddle two
  using value_type = T;
  Aligned() = default;
  template <class U> Aligned(const Aligned<U> &) {}
  T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T *p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  template <class U> bool operator==(const Aligned<U> &) const { return true; }
  template <class U> bool operator!=(const Aligned<U> &) const { return false; }
};
template <class T> using Array = std::vector<T, Aligned<T>>;

// ---- activations, on vectors

enum Activation { RELU, LEAKY_RELU, ELU, GELU, SILU, SOFTPLUS, TANH, SIGMOID };

template <class T> Vec<T> exp(Vec<T> x) {
  using V = Vec<T>;
  constexpr bool single = sizeof(T) == 4;
  using Int = std::conditional_t<single, int32_t, int64_t>;
  using I = Vec<Int>;
  constexpr T top = single ? 88 : 709, shift = single ? 0x1.8p23 : 0x1.8p52;
  constexpr int mantissa = single ? 23 : 52, degree = single ? 7 : 13;
  constexpr T log2_e = 1.4426950408889634, ln2_high = single ? 0x1.62e4p-1 : 0x1.62e42fefap-1;
  constexpr T ln2_low = 0.6931471805599453094172L - static_cast<long double>(ln2_high);
  x = x > top ? V{} + top : x;
  x = x < -(top - 1) ? V{} - (top - 1) : x;
  V n = x * log2_e + shift;  // the nearest integer stands in the low bits
  V r = x - (n - shift) * ln2_high - (n - shift) * ln2_low;
  V p = V{} + 1;
  for (int k = degree; k >= 1; --k) p = 1 + p * (r * static_cast<T>(1.0 / k));
  return (V)((I)p + ((I)n << mantissa));
}

// log(1 + y) for y in [0, 1], as 2 artanh(y / (2 + y)).
template <class T> Vec<T> log1p(Vec<T> y) {
  Vec<T> s = y / (2 + y), s2 = s * s, sum = Vec<T>{};
  for (int k = sizeof(T) == 4 ? 15 : 33; k >= 1; k -= 2) sum = sum * s2 + static_cast<T>(2.0 / k);
  return s * sum;
}

template <class T, Activation A> Vec<T> activation(Vec<T> x) {
  using V = Vec<T>;
  const V zero{};
  switch (A) {  // comparisons are written so that NaN passes through
  case RELU: return x < 0 ? zero : x;
  case LEAKY_RELU: return x < 0 ? x * T(0.01) : x;
  case ELU: return x < 0 ? exp<T>(x) - 1 : x;
  case SILU: return x / (1 + exp<T>(-x));
  case SOFTPLUS: return (x < 0 ? zero : x) + log1p<T>(exp<T>(x < 0 ? x : -x));
  case TANH: return 1 - 2 / (exp<T>(2 * x) + 1);
  case SIGMOID: return 1 / (1 + exp<T>(-x));
  case GELU:
    for (int i = 0; i < WIDTH<T>; ++i) x[i] *= T(0.5) * (1 + std::erf(x[i] * T(0.70710678118654752440)));
    return x;
  }
}

// 64 values -> a word with ones where they are not zero.
template <class T> Word nonzero(const T *value) {
  Word word = 0;
#if defined(__AVX2__)
  for (int i = 0; i < 64; i += WIDTH<T>) {
    Word bits;
    if constexpr (sizeof(T) == 4)
      bits = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(value + i), _mm256_setzero_ps(), _CMP_NEQ_UQ));
    else
      bits = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(value + i), _mm256_setzero_pd(), _CMP_NEQ_UQ));
    word |= bits << i;
  }
#else
  for (int i = 0; i < 64; ++i) word |= static_cast<Word>(value[i] != 0) << i;
#endif
  return word;
}

template <class T, Activation A> void activate_all(T *value, Word *on, int64_t size) {
  for (int64_t i = 0; i < size; i += 64) {
    for (int j = 0; j < 64; j += WIDTH<T>) vec(value + i + j) = activation<T, A>(vec(value + i + j));
    on[i / 64] = nonzero(value + i) & (size - i < 64 ? (Word(1) << (size - i)) - 1 : ~Word(0));
  }
}

// f of `size` sums in place (there is room for whole words), and which of them are not zero.
template <class T> void activate(Activation kind, T *value, Word *on, int64_t size) {
  switch (kind) {
  case RELU: return activate_all<T, RELU>(value, on, size);
  case LEAKY_RELU: return activate_all<T, LEAKY_RELU>(value, on, size);
  case ELU: return activate_all<T, ELU>(value, on, size);
  case GELU: return activate_all<T, GELU>(value, on, size);
  case SILU: return activate_all<T, SILU>(value, on, size);
  case SOFTPLUS: return activate_all<T, SOFTPLUS>(value, on, size);
  case TANH: return activate_all<T, TANH>(value, on, size);
  case SIGMOID: return activate_all<T, SIGMOID>(value, on, size);
  }
}

// ---- layers

// out = sum + factor row
template <class T> void add_row(const T *sum, T factor, const T *row, T *out, int64_t size) {
  int64_t i = 0;
  for (; i + WIDTH<T> <= size; i += WIDTH<T>) vec(out + i) = vec(sum + i) + factor * vec(row + i);
  for (; i < size; ++i) out[i] = sum[i] + factor * row[i];
}

// out = bias + the sum of rows, P vectors wide.
template <class T, int P>
void sum_rows(const T *bias, const T *weight, int64_t size, const int32_t *ones, int64_t n_ones, T *out) {
  Vec<T> total[P];
  for (int p = 0; p < P; ++p) total[p] = vec(bias + p * WIDTH<T>);
  for (int64_t i = 0; i < n_ones; ++i)
    for (int p = 0; p < P; ++p) total[p] += vec(weight + ones[i] * size + p * WIDTH<T>);
  for (int p = 0; p < P; ++p) vec(out + p * WIDTH<T>) = total[p];
}

// out (M,) = bias (M,) + the rows of weight (H, M) that are listed.
template <class T>
void sum_rows(const T *bias, const T *weight, int64_t size, const int32_t *ones, int64_t n_ones, T *out) {
  constexpr int64_t W = WIDTH<T>;
  int64_t i = 0;
  for (; i + 8 * W <= size; i += 8 * W) sum_rows<T, 8>(bias + i, weight + i, size, ones, n_ones, out + i);
  for (; i + W <= size; i += W) sum_rows<T, 1>(bias + i, weight + i, size, ones, n_ones, out + i);
  for (; i < size; ++i) {
    out[i] = bias[i];
    for (int64_t j = 0; j < n_ones; ++j) out[i] += weight[ones[j] * size + i];
  }
}

// The latents that are on in a packed state, in order; their number.
inline int64_t list_ones(const uint8_t *packed, int64_t n_bytes, int32_t *ones) {
  int64_t count = 0;
  for (int64_t i = 0; i < n_bytes; i += 8) {
    Word word = 0;
    std::memcpy(&word, packed + i, std::min<int64_t>(8, n_bytes - i));
    for (; word; word &= word - 1) ones[count++] = 8 * i + __builtin_ctzll(word);
  }
  return count;
}

// sum[s] += value[s][k] rows[k] over the ones k of a word on[s], for n states s and P vectors of outputs.
template <class T, int P>
void add_rows(int64_t n, const Word *on, int64_t on_stride, const T *value, const T *rows, T *sum, int64_t stride) {
  constexpr int W = WIDTH<T>;
  for (int64_t s = 0; s < n; ++s, on += on_stride, value += stride, sum += stride) {
    Vec<T> total[P];
    for (int p = 0; p < P; ++p) total[p] = vec(sum + p * W);
    for (Word word = *on; word; word &= word - 1) {
      const int k = __builtin_ctzll(word);
      const T factor = value[k];
      const T *row = rows + k * (P * W);
      for (int p = 0; p < P; ++p) total[p] += factor * vec(row + p * W);
    }
    for (int p = 0; p < P; ++p) vec(sum + p * W) = total[p];
  }
}

template <class T> using AddRows = void (*)(int64_t, const Word *, int64_t, const T *, const T *, T *, int64_t);
template <class T>
constexpr AddRows<T> ADD_ROWS[PANEL_MAX + 1] = {
    nullptr,          add_rows<T, 1>, add_rows<T, 2>, add_rows<T, 3>, add_rows<T, 4>,  add_rows<T, 5>, add_rows<T, 6>,
    add_rows<T, 7>, add_rows<T, 8>, add_rows<T, 9>, add_rows<T, 10>, add_rows<T, 11>, add_rows<T, 12>};

// A layer behind the first: its weights cut into panels of P vectors of outputs, [panel][input][P vectors].
template <class T> struct Layer {
  int64_t n_in, n_out, n_panels, panel;  // panel: vectors in each
  T *packed;
  const T *weight, *bias;

  Layer(int64_t n_in, int64_t n_out, const T *weight, const T *bias)
      : n_in(n_in), n_out(n_out), weight(weight), bias(bias) {
    const int64_t vectors = (n_out + WIDTH<T> - 1) / WIDTH<T>;
    n_panels = (vectors + PANEL_MAX - 1) / PANEL_MAX;
    panel = (vectors + n_panels - 1) / n_panels;
  }
  int64_t panel_size() const { return panel * WIDTH<T>; }
  int64_t n_columns() const { return n_panels * panel_size(); }

  void pack(int64_t which) const {
    const int64_t start = which * panel_size(), count = std::clamp<int64_t>(n_out - start, 0, panel_size());
    T *to = packed + start * n_in;
    for (int64_t k = 0; k < n_in; ++k, to += panel_size()) {
      std::copy_n(weight + k * n_out + start, count, to);
      std::fill(to + count, to + panel_size(), T(0));
    }
  }
  // sum (n, n_out) += value (n, n_in) @ weight, where `on` marks the values that are not zero; rows `stride` apart
  void apply(int64_t n, const Word *on, int64_t on_stride, const T *value, T *sum, int64_t stride) const {
    for (int64_t which = 0; which < n_panels; ++which)
      for (int64_t k = 0; k < n_in; k += 64)
        ADD_ROWS<T>[panel](n, on + k / 64, on_stride, value + k, packed + (which * n_in + k) * panel_size(),
                           sum + which * panel_size(), stride);
  }
};

struct Network {  // the same fields as native.py's Network
  int64_t n_layers, activation;
  const int64_t *sizes;                        // (n_layers + 1,)
  const void *const *weights, *const *biases;  // of each layer
};

// The layers behind the first. Their packed weights are in memory that this thread keeps: valid until the next call.
template <class T> std::vector<Layer<T>> hidden_layers(const Network &net) {
  static thread_local Array<T> memory;
  std::vector<Layer<T>> layers;
  int64_t size = 0;
  for (int64_t i = 1; i < net.n_layers; ++i) {
    layers.emplace_back(net.sizes[i], net.sizes[i + 1], static_cast<const T *>(net.weights[i]),
                        static_cast<const T *>(net.biases[i]));
    size += layers.back().n_in * layers.back().n_columns();
  }
  memory.resize(size);
  size = 0;
  for (auto &layer : layers) {
    layer.packed = memory.data() + size;
    size += layer.n_in * layer.n_columns();
  }
  return layers;
}

// Room for the inputs or outputs of any layer, in whole words.
template <class T> int64_t widest(const Network &net, const std::vector<Layer<T>> &layers) {
  int64_t width = round_up(net.sizes[1], 64);
  for (const auto &layer : layers) width = std::max(width, round_up(layer.n_columns(), 64));
  return width;
}

// Distance of rows of this width: an odd number of cache lines, for with a power of two they would evict each other.
template <class T> int64_t stride_for(int64_t width) { return width + 64 / sizeof(T); }

// ---- random numbers, the same as in streams.py

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;

inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

struct Stream {
  uint64_t key, n_drawn;
  uint64_t bits() { return mix(key + ++n_drawn * GOLDEN); }
  template <class T> T uniform() { return static_cast<T>(bits() >> 40) * static_cast<T>(0x1p-24); }
  int64_t integer(int64_t high) { return (bits() >> 32) * high >> 32; }
  void distinct_integers(int64_t high, int64_t count, int64_t *chosen) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t top = high - count + j, draw = integer(top + 1);
      chosen[j] = std::find(chosen, chosen + j, draw) == chosen + j ? draw : top;
    }
  }
};

// ---- order: floating-point numbers as integers that sort the same way, NaN above all others as in torch

inline uint32_t rank(float x) {
  if (std::isnan(x)) return ~0u;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
inline uint64_t rank(double x) {
  if (std::isnan(x)) return ~uint64_t(0);
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  return bits >> 63 ? ~bits : bits | 0x8000000000000000u;
}

// The largest threshold that at least `count` of the ranks reach, by bisection: each step is one pass without branches.
template <class R> R threshold(const R *ranks, int64_t n, int64_t count) {
  R low = *std::min_element(ranks, ranks + n), high = *std::max_element(ranks, ranks + n);
  while (low < high) {
    const R middle = high - (high - low) / 2;
    R reached = 0;
    for (int64_t i = 0; i < n; ++i) reached += ranks[i] >= middle;
    if (static_cast<int64_t>(reached) == count) return middle;
    if (static_cast<int64_t>(reached) > count)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// ---- the E-step

enum Selection { FITNESS, POSTERIOR, BEST, UNIFORM };

struct EStepTask {  // the same fields as native.py's EStepTask
  Network decoder;
  int64_t batch, n_states, n_latents, n_threads;
  int64_t selection, n_parents, n_children, n_generations, n_flips, seed, n_drawn;
  double log_off, sigma2;                      // log p(z = 0), noise variance
  const void *logit;                           // (H,): of pi
  const uint64_t *numbers, *index;             // (H,): of the codes, (B,): of the data points
  const void *x;                               // (B, D)
  const uint8_t *observed, *packed;            // (B, D) or null, (B, S, ceil(H/8))
  uint8_t *new_packed;                         // (B, S, ceil(H/8))
  void *error, *log_joint;                     // (B, S)
  int64_t *n_accepted;                         // (B,)
};

// The search for one data point at a time. It holds the old states, then every new one once, in the order found.
template <class T> class Search {
  using Rank = decltype(rank(T()));
  const EStepTask *task;
  const std::vector<Layer<T>> *layers;  // behind the first
  const T *weight, *bias, *logit;       // of the first layer; of pi
  int64_t n_bytes, n_first, n_outputs, n_words, stride, n = 0, n_evaluated = 0;
  double log_scale;                 // D log(2 pi sigma2) for the observed D
  Array<uint8_t> states;            // (n, n_bytes)
  Array<uint64_t> code;             // (n,)
  Array<double> log_prior;          // (n,)
  Array<T> error, fitness;          // (n,)
  Array<Rank> ranks;                // (n,)
  Array<int32_t> slots;             // hash table of codes: 1 + place of the state, 0 where there is none
  Array<int32_t> pool, parents;     // places of the last generation, and of those of them that breed
  Array<T> reached;                 // (pool,)
  Array<int64_t> flips;             // (P, C, n_flips)
  Array<int32_t> ones;              // latents that are on
  Array<T> parent, start, mask;     // a parent's first sums; bias - x; 1 where observed
  Array<T> value[2];                // (BLOCK, stride): what goes into a layer, what comes out
  Array<Word> on;                   // (BLOCK, n_words): where it is not zero

public:
  void prepare(const EStepTask &task, const std::vector<Layer<T>> &layers) {
    this->task = &task, this->layers = &layers;
    weight = static_cast<const T *>(task.decoder.weights[0]), logit = static_cast<const T *>(task.logit);
    n_bytes = (task.n_latents + 7) / 8, n_first = task.decoder.sizes[1], n_outputs = task.decoder.sizes[task.decoder.n_layers];
    const int64_t width = widest(task.decoder, layers);
    n_words = width / 64, stride = stride_for<T>(width);
    const int64_t n_bred = task.n_parents * task.n_children, n_max = task.n_states + task.n_generations * n_bred;
    int64_t n_slots = 1;
    while (n_slots < 2 * n_max) n_slots *= 2;
    states.resize(n_max * n_bytes), code.resize(n_max), log_prior.resize(n_max);
    error.resize(n_max), fitness.resize(n_max), ranks.resize(n_max), slots.resize(n_slots);
    pool.reserve(std::max(task.n_states, n_bred)), reached.reserve(pool.capacity());
    ones.resize(8 * n_bytes), parents.resize(task.n_parents), flips.resize(n_bred * task.n_flips);
    for (auto *array : {&parent, &start, &mask}) array->resize(width);
    for (auto &array : value) array.resize(BLOCK * stride);
    on.resize(BLOCK * n_words);
    bias = layers.empty() ? start.data() : static_cast<const T *>(task.decoder.biases[0]);
  }

  void run(int64_t point) {
    read_point(point);
    read_states(point);
    if (task->n_generations) {
      Stream rng{mix(task->index[point] * GOLDEN + task->seed), static_cast<uint64_t>(task->n_drawn)};
      for (int64_t g = 0; g < task->n_generations; ++g) breed(rng);
    }
    write(point);
  }

private:
  const uint8_t *state(int64_t place) const { return states.data() + place * n_bytes; }

  void read_point(int64_t point) {
    const T *x = static_cast<const T *>(task->x) + point * n_outputs;
    const T *bias = static_cast<const T *>(task->decoder.biases[task->decoder.n_layers - 1]);
    for (int64_t i = 0; i < n_outputs; ++i) start[i] = bias[i] - x[i];
    int64_t n_observed = n_outputs;
    if (task->observed) {
      const uint8_t *observed = task->observed + point * n_outputs;
      std::copy_n(observed, n_outputs, mask.data());
      n_observed = std::count(observed, observed + n_outputs, 1);
    }
    log_scale = n_observed * std::log(2 * 3.14159265358979323846 * task->sigma2);
  }

  void read_states(int64_t point) {
    const int64_t n_states = task->n_states;
    std::fill(slots.begin(), slots.end(), 0);
    std::copy_n(task->packed + point * n_states * n_bytes, n_states * n_bytes, states.data());
    pool.resize(n_states);
    n = n_evaluated = 0;
    for (int64_t s = 0; s < n_states; ++s) {
      uint64_t sum = 0;
      double prior = task->log_off;
      const int64_t n_ones = list_ones(state(s), n_bytes, ones.data());
      for (int64_t i = 0; i < n_ones; ++i) {
        sum += task->numbers[ones[i]];
        prior += logit[ones[i]];
      }
      sum_rows(bias, weight, n_first, ones.data(), n_ones, add(sum, prior));
      find_or_claim(sum, s);
      pool[s] = s;
    }
    evaluate();
  }

  // The place of the state with this code; where there is none, `place` is put down for it.
  int32_t find_or_claim(uint64_t wanted, int32_t place) {
    const uint64_t last = slots.size() - 1;
    uint64_t slot = wanted >> 32 & last;
    for (; slots[slot]; slot = (slot + 1) & last)
      if (code[slots[slot] - 1] == wanted) return slots[slot] - 1;
    slots[slot] = place + 1;
    return place;
  }

  // Count in the state at place n; returns where its first sums go.
  T *add(uint64_t its_code, double its_log_prior) {
    if (n - n_evaluated == BLOCK) evaluate();
    code[n] = its_code, log_prior[n] = its_log_prior;
    return value[0].data() + (n++ - n_evaluated) * stride;
  }

  // From first sums to errors and log-joints, for the states added since the last time.
  void evaluate() {
    const int64_t count = n - n_evaluated;
    T *in = value[0].data(), *out = value[1].data();
    for (const auto &layer : *layers) {
      const T *from = &layer == &layers->back() ? start.data() : layer.bias;
      for (int64_t s = 0; s < count; ++s) {
        activate(static_cast<Activation>(task->decoder.activation), in + s * stride, &on[s * n_words], layer.n_in);
        std::copy_n(from, layer.n_out, out + s * stride);
      }
      layer.apply(count, on.data(), n_words, in, out, stride);
      std::swap(in, out);
    }
    for (int64_t s = 0; s < count; ++s, ++n_evaluated) {
      error[n_evaluated] = squared(in + s * stride);
      fitness[n_evaluated] = log_prior[n_evaluated] - 0.5 * (error[n_evaluated] / task->sigma2 + log_scale);
    }
  }

  T squared(T *difference) const {
    if (task->observed)
      for (int64_t i = 0; i < n_outputs; ++i) difference[i] *= mask[i];
    std::fill(difference + n_outputs, difference + round_up(n_outputs, WIDTH<T>), T(0));
    Vec<T> sum{};
    for (int64_t i = 0; i < n_outputs; i += WIDTH<T>) sum += vec(difference + i) * vec(difference + i);
    T total = 0;
    for (int j = 0; j < WIDTH<T>; ++j) total += sum[j];
    return total;
  }

  void breed(Stream &rng) {
    select(rng);
    const int64_t n_flips = task->n_flips, n_children = task->n_children;
    const int64_t at_once = n_flips == 1 ? n_children : n_flips;  // see evolution.draw_flips
    for (size_t i = 0; i < flips.size(); i += at_once) rng.distinct_integers(task->n_latents, at_once, &flips[i]);
    pool.clear();
    for (size_t p = 0; p < parents.size(); ++p) {
      const int64_t n_ones = list_ones(state(parents[p]), n_bytes, ones.data());
      sum_rows(bias, weight, n_first, ones.data(), n_ones, parent.data());
      for (int64_t c = 0; c < n_children; ++c) pool.push_back(mutate(parents[p], &flips[(p * n_children + c) * n_flips]));
    }
    evaluate();
  }

  // The child's place, which is an older one where the state was known before.
  int32_t mutate(int32_t place, const int64_t *flip) {
    uint8_t *child = states.data() + n * n_bytes;
    std::copy_n(state(place), n_bytes, child);
    uint64_t its_code = code[place];
    double prior = log_prior[place];
    for (int64_t i = 0; i < task->n_flips; ++i) {
      const bool off = !(child[flip[i] / 8] >> flip[i] % 8 & 1);
      child[flip[i] / 8] ^= 1 << flip[i] % 8;
      its_code += off ? task->numbers[flip[i]] : -task->numbers[flip[i]];
      prior += off ? logit[flip[i]] : -logit[flip[i]];
    }
    const int32_t found = find_or_claim(its_code, n);
    if (found != n) return found;
    T *sums = add(its_code, prior);
    for (int64_t i = 0; i < task->n_flips; ++i) {
      const T sign = child[flip[i] / 8] >> flip[i] % 8 & 1 ? 1 : -1;
      add_row(i == 0 ? parent.data() : sums, sign, weight + flip[i] * n_first, sums, n_first);
    }
    return found;
  }

  // evolution.select_parents
  void select(Stream &rng) {
    if (task->selection == UNIFORM) {
      for (auto &chosen : parents) chosen = pool[rng.integer(pool.size())];
      return;
    }
    if (task->selection == BEST) {
      std::partial_sort_copy(pool.begin(), pool.end(), parents.begin(), parents.end(),
                             [&](int32_t a, int32_t b) { return rank(fitness[a]) > rank(fitness[b]); });
      return;
    }
    share();
    for (auto &chosen : parents) {
      const T draw = rng.uniform<T>() * reached.back();
      const int64_t place = std::upper_bound(reached.begin(), reached.end(), draw) - reached.begin();
      chosen = pool[std::min<int64_t>(place, pool.size() - 1)];
    }
  }

  // What each of the pool and those before it have of the probability to breed; summed in double as torch does.
  void share() {
    reached.resize(pool.size());
    for (size_t i = 0; i < pool.size(); ++i) reached[i] = fitness[pool[i]];
    const auto [least, most] = std::minmax_element(reached.begin(), reached.end());
    const T low = *least, high = *most;
    double sum = 0;
    if (task->selection == POSTERIOR) {
      for (auto &r : reached) sum += r = std::exp(r - high);
      for (auto &r : reached) r /= static_cast<T>(sum);
    } else {
      for (auto &r : reached) r = high == low ? T(1) : r - low;
    }
    sum = 0;
    for (auto &r : reached) r = sum += r;
  }

  // Keep the fittest.
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
};

// Memory that a thread keeps from call to call. Inlined, its address would be looked up again at every use.
template <class T> __attribute__((noinline)) Search<T> &search_of_thread() {
  static thread_local Search<T> search;
  return search;
}

template <class T> void run_e_step(const EStepTask &task) {
  const auto layers = hidden_layers<T>(task.decoder);
  Phases phases;
  for (const auto &layer : layers) phases.add(layer.n_panels, [&](int64_t panel) { layer.pack(panel); });
  phases.add(task.batch, [&](int64_t point) {
    Search<T> &search = search_of_thread<T>();
    search.prepare(task, layers);
    search.run(point);
  });
  phases.run(task.n_threads);
}

// ---- products of packed states z (R, H) with matrices

// out (R, M) = z @ weight (H, M) + bias (M,)
template <class T>
void multiply(const uint8_t *packed, const T *weight, const T *bias, T *out, int64_t n_rows, int64_t n_latents,
              int64_t n_columns, int64_t n_threads) {
  constexpr int64_t at_once = 8;
  const int64_t n_bytes = (n_latents + 7) / 8;
  Phases phases;
  phases.add((n_rows + at_once - 1) / at_once, [=](int64_t part) {
    std::vector<int32_t> ones(8 * n_bytes);
    for (int64_t r = part * at_once; r < std::min(n_rows, (part + 1) * at_once); ++r) {
      const int64_t n_ones = list_ones(packed + r * n_bytes, n_bytes, ones.data());
      sum_rows(bias, weight, n_columns, ones.data(), n_ones, out + r * n_columns);
    }
  });
  phases.run(n_threads);
}

// out (H, M) = z^T @ grad (R, M); a thread takes some of the columns, so that the order of summation is always that of r
template <class T>
void multiply_transposed(Phases &phases, const uint8_t *packed, const T *grad, int64_t stride, T *out, int64_t n_rows,
                         int64_t n_latents, int64_t n_columns, int64_t n_threads) {
  const int64_t n_bytes = (n_latents + 7) / 8, at_once = round_up((n_columns + n_threads - 1) / n_threads, 16);
  phases.add((n_columns + at_once - 1) / at_once, [=](int64_t part) {
    const int64_t first = part * at_once, count = std::min(at_once, n_columns - first);
    for (int64_t h = 0; h < n_latents; ++h) std::fill_n(out + h * n_columns + first, count, T(0));
    std::vector<int32_t> ones(8 * n_bytes);
    for (int64_t r = 0; r < n_rows; ++r) {
      const int64_t n_ones = list_ones(packed + r * n_bytes, n_bytes, ones.data());
      for (int64_t i = 0; i < n_ones; ++i) {
        T *sum = out + ones[i] * n_columns + first;
        add_row(sum, T(1), grad + r * stride + first, sum, count);
      }
    }
  });
}

// gram (H+1, H+1) += sum_r weight_r y_r y_r^T, mean (B, H+1) += weight_r y_r in the row of r's data point: y_r is the
// state z_r with a one behind it. On one thread: the ones of a state are few, and so the sums are in the order of r.
template <class T>
void add_moments(const uint8_t *packed, const T *weight, const int64_t *point, double *gram, T *mean, int64_t n_rows,
                 int64_t n_latents) {
  const int64_t n_bytes = (n_latents + 7) / 8, size = n_latents + 1;
  std::vector<int32_t> ones(8 * n_bytes + 1);
  for (int64_t r = 0; r < n_rows; ++r) {
    int64_t n_ones = list_ones(packed + r * n_bytes, n_bytes, ones.data());
    ones[n_ones++] = n_latents;
    const T factor = weight[r];
    T *of_point = mean + point[r] * size;
    for (int64_t i = 0; i < n_ones; ++i) {
      of_point[ones[i]] += factor;
      double *row = gram + ones[i] * size;
      for (int64_t j = 0; j < n_ones; ++j) row[ones[j]] += factor;
    }
  }
}

// ---- the gradient of the decoder's loss, for ReLU: what is not zero is what has a derivative

struct GradientTask {  // the same fields as native.py's GradientTask
  Network decoder;
  int64_t n_rows, n_latents, n_threads;
  double scale;                                            // of the loss sum_r weight_r |x - mu|^2 / 2
  const int64_t *point;                                    // (R,)
  const uint8_t *packed;                                   // (R, ceil(H/8))
  const void *weight, *x;                                  // (R,), (B, D)
  const uint8_t *observed;                                 // (B, D) or null
  void *const *weight_gradients, *const *bias_gradients;  // of each layer
};

template <class T> T dot(const T *a, const T *b, int64_t size) {
  constexpr int64_t W = WIDTH<T>;
  Vec<T> sum[4]{};
  T total = 0;
  int64_t i = 0;
  for (; i + 4 * W <= size; i += 4 * W)
    for (int j = 0; j < 4; ++j) sum[j] += vec(a + i + j * W) * vec(b + i + j * W);
  for (; i + W <= size; i += W) sum[0] += vec(a + i) * vec(b + i);
  for (; i < size; ++i) total += a[i] * b[i];
  sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (int j = 0; j < W; ++j) total += sum[0][j];
  return total;
}

template <class T> class Backward {
  const GradientTask &task;
  const std::vector<Layer<T>> layers;
  const int64_t n_rows, n_bytes, n_outputs, width, stride, n_words;
  static constexpr int64_t ROWS = 16, UNITS = 16;  // of a thread at a time
  Array<T> &value;   // (n_layers, R, stride): sums of each layer, then values; of the last one gradients
  Array<T> &slope;   // (n_layers - 1, R, stride): gradients of the sums
  Array<Word> &on;   // (n_layers - 1, R, n_words)

  T *values(int64_t layer, int64_t row) { return value.data() + (layer * n_rows + row) * stride; }
  T *slopes(int64_t layer, int64_t row) {
    return layer + 1 == task.decoder.n_layers ? values(layer, row) : slope.data() + (layer * n_rows + row) * stride;
  }
  Word *ones(int64_t layer, int64_t row) { return on.data() + (layer * n_rows + row) * n_words; }

public:
  Backward(const GradientTask &task, Array<T> &value, Array<T> &slope, Array<Word> &on)
      : task(task), layers(hidden_layers<T>(task.decoder)), n_rows(task.n_rows),
        n_bytes((task.n_latents + 7) / 8), n_outputs(task.decoder.sizes[task.decoder.n_layers]),
        width(widest(task.decoder, layers)), stride(stride_for<T>(width)), n_words(width / 64), value(value),
        slope(slope), on(on) {
    const int64_t n_hidden = layers.size();
    value.resize((n_hidden + 1) * n_rows * stride), slope.resize(n_hidden * n_rows * stride);
    on.resize(n_hidden * n_rows * n_words);
  }

  void run() {
    const int64_t n_hidden = layers.size(), n_first = task.decoder.sizes[1];
    Phases phases;
    for (const auto &layer : layers) phases.add(layer.n_panels, [&](int64_t panel) { layer.pack(panel); });
    phases.add((n_rows + ROWS - 1) / ROWS,
               [&](int64_t part) { forward(part * ROWS, std::min(n_rows, (part + 1) * ROWS)); });
    for (int64_t i = n_hidden; i > 0; --i)
      phases.add((layers[i - 1].n_in + UNITS - 1) / UNITS, [this, i](int64_t part) {
        backward(i, part * UNITS, std::min(layers[i - 1].n_in, (part + 1) * UNITS));
      });
    multiply_transposed(phases, task.packed, slopes(0, 0), stride, static_cast<T *>(task.weight_gradients[0]), n_rows,
                        task.n_latents, n_first, task.n_threads);
    phases.run(task.n_threads);
    T *last = static_cast<T *>(task.bias_gradients[n_hidden]);
    std::fill_n(last, n_outputs, T(0));
    for (int64_t r = 0; r < n_rows; ++r) add_row(last, T(1), slopes(n_hidden, r), last, n_outputs);
  }

private:
  // Rows [first, end): values of all layers, and the gradient of the outputs.
  void forward(int64_t first, int64_t end) {
    std::vector<int32_t> list(8 * n_bytes);
    const Network &net = task.decoder;
    for (int64_t r = first; r < end; ++r) {
      const int64_t n_ones = list_ones(task.packed + r * n_bytes, n_bytes, list.data());
      sum_rows(static_cast<const T *>(net.biases[0]), static_cast<const T *>(net.weights[0]), net.sizes[1], list.data(),
               n_ones, values(0, r));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      for (int64_t r = first; r < end; ++r) {
        activate(RELU, values(i, r), ones(i, r), layers[i].n_in);
        std::copy_n(layers[i].bias, layers[i].n_out, values(i + 1, r));
      }
      layers[i].apply(end - first, ones(i, first), n_words, values(i, first), values(i + 1, first), stride);
    }
    for (int64_t r = first; r < end; ++r) {
      T *difference = values(layers.size(), r);
      const T factor = static_cast<const T *>(task.weight)[r] * task.scale;
      add_row(difference, T(-1), static_cast<const T *>(task.x) + task.point[r] * n_outputs, difference, n_outputs);
      for (int64_t d = 0; d < n_outputs; ++d) difference[d] *= factor;
      if (task.observed)
        for (int64_t d = 0; d < n_outputs; ++d) difference[d] *= task.observed[task.point[r] * n_outputs + d];
    }
  }

  // Inputs [first, end) of layer i: gradients of their weights, of themselves, and of the biases they have.
  void backward(int64_t i, int64_t first, int64_t end) {
    const Layer<T> &layer = layers[i - 1];
    T *gradient = static_cast<T *>(task.weight_gradients[i]), *bias = static_cast<T *>(task.bias_gradients[i - 1]);
    std::fill(gradient + first * layer.n_out, gradient + end * layer.n_out, T(0));
    std::fill(bias + first, bias + end, T(0));
    for (int64_t r = 0; r < n_rows; ++r) {
      const T *in = values(i - 1, r), *above = slopes(i, r);
      T *below = slopes(i - 1, r);
      std::fill(below + first, below + end, T(0));
      const Word word = ones(i - 1, r)[first / 64] >> first % 64 & ((Word(1) << UNITS) - 1);
      for (Word rest = word; rest; rest &= rest - 1) {
        const int64_t k = first + __builtin_ctzll(rest);
        below[k] = dot(layer.weight + k * layer.n_out, above, layer.n_out);
        bias[k] += below[k];
        add_row(gradient + k * layer.n_out, in[k], above, gradient + k * layer.n_out, layer.n_out);
      }
    }
  }
};

template <class T> void run_gradient(const GradientTask &task) {
  static thread_local Array<T> value, slope;
  static thread_local Array<Word> on;
  Backward<T>(task, value, slope, on).run();
}

// ---- Adam, in one pass over memory

struct AdamTask {  // the same fields as adam.py's AdamTask
  int64_t n_parameters, n_threads;
  double rate, beta1, beta2, root, epsilon;
  const int64_t *sizes;
  void *const *parameters, *const *gradients, *const *means, *const *squares;
};

template <class T> void run_adam(const AdamTask &task) {
  constexpr int64_t at_once = 1 << 15;
  const T rate = task.rate, beta1 = task.beta1, beta2 = task.beta2, root = task.root, epsilon = task.epsilon;
  std::vector<std::pair<int64_t, int64_t>> parts;  // a parameter, and where in it to start
  for (int64_t p = 0; p < task.n_parameters; ++p)
    for (int64_t start = 0; start < task.sizes[p]; start += at_once) parts.emplace_back(p, start);
  Phases phases;
  phases.add(parts.size(), [=, &parts, &task](int64_t part) {  // numbers by reference would be read again at every step
    const auto [p, start] = parts[part];
    T *__restrict parameter = static_cast<T *>(task.parameters[p]);
    const T *__restrict gradient = static_cast<const T *>(task.gradients[p]);
    T *__restrict mean = static_cast<T *>(task.means[p]), *__restrict square = static_cast<T *>(task.squares[p]);
    const int64_t end = std::min(task.sizes[p], start + at_once);
    for (int64_t i = start; i < end; ++i) {
      mean[i] += (1 - beta1) * (gradient[i] - mean[i]);
      square[i] = beta2 * square[i] + (1 - beta2) * gradient[i] * gradient[i];
      parameter[i] -= rate * mean[i] / (std::sqrt(square[i]) / root + epsilon);
    }
  });
  phases.run(task.n_threads);
}

}  // namespace

extern "C" {

void set_parallel(Parallel entry) { parallel = entry; }

void e_step_float(const EStepTask *task) { run_e_step<float>(*task); }
void e_step_double(const EStepTask *task) { run_e_step<double>(*task); }
void gradient_float(const GradientTask *task) { run_gradient<float>(*task); }
void gradient_double(const GradientTask *task) { run_gradient<double>(*task); }
void adam_float(const AdamTask *task) { run_adam<float>(*task); }
void adam_double(const AdamTask *task) { run_adam<double>(*task); }

#define PRODUCTS(T)                                                                                                    \
  void multiply_##T(const uint8_t *packed, const T *weight, const T *bias, T *out, int64_t n_rows, int64_t n_latents,  \
                    int64_t n_columns, int64_t n_threads) {                                                            \
    multiply(packed, weight, bias, out, n_rows, n_latents, n_columns, n_threads);                                      \
  }                                                                                                                    \
  void multiply_transposed_##T(const uint8_t *packed, const T *grad, T *out, int64_t n_rows, int64_t n_latents,        \
                               int64_t n_columns, int64_t n_threads) {                                                 \
    Phases phases;                                                                                                     \
    multiply_transposed(phases, packed, grad, n_columns, out, n_rows, n_latents, n_columns, n_threads);                \
    phases.run(n_threads);                                                                                             \
  }                                                                                                                    \
  void add_moments_##T(const uint8_t *packed, const T *weight, const int64_t *point, double *gram, T *mean,            \
                       int64_t n_rows, int64_t n_latents) {                                                            \
    add_moments(packed, weight, point, gram, mean, n_rows, n_latents);                                                 \
  }
PRODUCTS(float)
PRODUCTS(double)
}
