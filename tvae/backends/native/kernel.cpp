// The visit of a minibatch, its E-step and gradient by themselves, Adam, products with packed states, and local groups of
// similar patches, in plain C++ behind a C interface.
//
// Every layer is a sum of rows: in the first layer the rows whose latents are on, in the others the rows whose hidden
// unit is not zero, times its value. A set of 64 inputs is a word, and the loop runs over the word's ones, so the cost
// is proportional to what is on. Each data point is computed by one thread in one order: results do not depend on the
// number of threads. Compiled by build.py, loaded by loading.py, which hands in the version of the sources.

#include "adam.hpp"
#include "e_step.hpp"
#include "filling.hpp"
#include "gradient.hpp"
#include "local_groups.hpp"
#include "products.hpp"
#include "slab.hpp"
#include "tasks.hpp"
#include "threads.hpp"
#include "visit.hpp"

extern "C" {

// What loading.py compares before it calls anything else.
const char *kernel_version() { return KERNEL_VERSION; }
void kernel_sizes(int64_t *sizes) {
  for (const size_t size :
       {sizeof(Network), sizeof(EStepTask), sizeof(GradientTask), sizeof(VisitTask), sizeof(AdamTask),
        sizeof(StretchTask), sizeof(SlabTask), sizeof(MatchingTask), sizeof(LocalGroupsTask),
        sizeof(FillingTask)})
    *sizes++ = size;
}

void visit_float(VisitTask *task) { run_visit<float>(*task); }
void visit_double(VisitTask *task) { run_visit<double>(*task); }
void stretch_float(StretchTask *task) { run_stretch<float>(*task); }
void stretch_double(StretchTask *task) { run_stretch<double>(*task); }
void e_step_float(EStepTask *task) { run_e_step<float>(*task); }
void e_step_double(EStepTask *task) { run_e_step<double>(*task); }
void gradient_float(const GradientTask *task) { run_gradient<float>(*task); }
void gradient_double(const GradientTask *task) { run_gradient<double>(*task); }
void slab_float(SlabTask *task) { run_slab<float>(*task); }
void slab_double(SlabTask *task) { run_slab<double>(*task); }
void adam_float(const AdamTask *task) { run_adam<float>(*task); }
void adam_double(const AdamTask *task) { run_adam<double>(*task); }
void matching_float(const MatchingTask *task) { run_matching(*task); }
void local_groups_float(const LocalGroupsTask *task) { run_local_groups(*task); }
void filling_float(const FillingTask *task) { run_filling(*task); }

#define PRODUCTS(T)                                                                                                    \
  void multiply_##T(const uint8_t *packed, const T *weight, const T *bias, T *out, int64_t n_rows, int64_t n_latents,  \
                    int64_t n_columns, int64_t n_threads) {                                                            \
    multiply(packed, weight, bias, out, n_rows, n_latents, n_columns, n_threads);                                      \
  }                                                                                                                    \
  void multiply_transposed_##T(const uint8_t *packed, const T *grad, T *out, int64_t n_rows, int64_t n_latents,        \
                               int64_t n_columns, int64_t n_threads) {                                                 \
    Phases phases;                                                                                                     \
    multiply_transposed(phases, packed, grad, n_columns, out, n_rows, n_latents, n_columns);                           \
    phases.run(n_threads);                                                                                             \
  }                                                                                                                    \
  void add_moments_##T(const uint8_t *packed, const T *weight, const int64_t *point, double *gram, T *mean,            \
                       int64_t n_rows, int64_t n_latents) {                                                            \
    add_moments(packed, weight, point, gram, mean, n_rows, n_latents);                                                 \
  }
PRODUCTS(float)
PRODUCTS(double)
}
