// What Python hands over: the same fields in the same order as the structures of bindings.py. Shapes are in comments;
// void pointers are to float or double, whichever the called function works in.
#pragma once

#include <cstdint>

namespace {

struct Network {
  int64_t n_layers, activation;
  const int64_t *sizes;                        // (n_layers + 1,)
  const void *const *weights, *const *biases;  // of each layer
};

struct EStepTask {
  Network decoder;
  int64_t batch, n_states, n_latents, n_threads;
  int64_t selection, n_parents, n_children, n_generations, n_flips;
  int64_t seed, n_drawn_before;      // of the random streams
  int64_t n_drawn;                   // result: random numbers drawn for each data point, the same for all
  double sigma2;
  const void *pi;                    // (H,)
  const uint64_t *numbers, *index;   // (H,): of the codes, (B,): of the data points
  const void *x;                     // (B, D)
  const uint8_t *observed, *packed;  // (B, D) or null, (B, S, ceil(H/8))
  uint8_t *new_packed;               // result: (B, S, ceil(H/8))
  void *error, *log_joint;           // results: (B, S)
  int64_t *n_accepted;               // result: (B,)
};

struct GradientTask {
  Network decoder;
  int64_t n_rows, n_latents, n_threads;
  int64_t imputes;                                        // whether missing values stand at their posterior mean
  double scale;                                           // of the loss, see gradient.hpp
  const int64_t *point;                                   // (R,), non-decreasing
  const uint8_t *packed;                                  // (R, ceil(H/8))
  const void *weight;                                     // (R,)
  const void *const *mu;                                  // (R,): of each row, or null if they are not known
  const void *x;                                          // (B, D)
  const uint8_t *observed;                                // (B, D) or null
  void *const *weight_gradients, *const *bias_gradients;  // results: of each layer
};

struct VisitTask {
  EStepTask search;
  int64_t imputes;                                        // as in the gradient
  double prune, scale;                                    // see inference/posterior.py, and `scale` of the gradient
  double *n_points, *n_observed, *n_accepted, *elbo, *error;  // sums that are added to, see training/m_step.py
  double *active;                                             // (H,): another
  double *imputed_error;                                      // another, or null if it is not wanted
  void *const *weight_gradients, *const *bias_gradients;  // results
};

struct SlabTask {
  int64_t n_points, n_values, n_latents, rank, n_states, n_cells, n_threads, n_parts;
  int64_t most_on, n_candidates, n_parents, n_children, n_generations;  // of the search; no generation: as they are
  int64_t most_found;               // result: the most latents of any state; above MOST_ON nothing is done
  double sigma2, prune, far_below;  // children expected so many nats below the best are not evaluated
  double error, elbo;               // sums that are added to
  const void *x, *bias, *vectors;   // (N, D), (D,), (H, r + 1, D)
  const uint8_t *observed;          // (N, D) or null
  const int64_t *cell;              // (N,): whose prior holds, or null: the only one
  const void *pi;                   // (cells, H); the n_candidates latents of highest prior are tried
  const uint8_t *packed;            // (N, S, ceil(H/8))
  uint8_t *new_packed;              // result: (N, S, ceil(H/8)), the fittest first
  double *log_joint, *log_prior;    // results: (N, S)
  int64_t *n_accepted;              // result: (N,)
  void *mean, *variance;            // results: (N, D) of the clean value, or null
  const void *clean_bias, *clean_vectors;  // what it is made of, as bias and vectors; where every value is observed
  double *active;                   // q by latent, added to: (cells, H), or (parts, H) where there is one for all
  double *together;                 // (H,): q times the number of latents on, where h is on: added to
  double *shift, *spread;           // (H, D), (H, D, D), symmetric: added to, or null: nothing is learned
};

struct AdamTask {
  int64_t n_parameters, n_threads;
  double beta1, beta2, epsilon;
  const double *rates, *roots;                                                 // of each step, see adam.hpp
  const int64_t *sizes;                                                        // of each parameter
  void *const *parameters, *const *gradients, *const *means, *const *squares;  // all but the gradients are updated
};

struct StretchTask {
  VisitTask visit;  // of all data points; its scale is not used
  int64_t size;     // data points in each minibatch but the last
  AdamTask adam;    // a step for each minibatch
};

struct MatchingTask {
  int64_t height, width, n_channels, patch_size, radius, n_similar, n_threads;
  int64_t n_rows, n_columns, n_planes;
  int64_t tile;                   // rows and columns of reference patches that are worked on together
  const int64_t *rows, *columns;  // (n_rows,), (n_columns,): where reference patches begin
  const float *pixels;            // (H, W, C)
  const double *mix;              // (n_planes, C): what is compared, as sums of channels
  int64_t *groups;                // result: (n_rows, n_columns, n_similar), see local_groups.hpp
};

struct LocalGroupsTask {
  MatchingTask matching;                // its pixels are the pilot; its groups are not used
  int64_t first_tile_row, n_tile_rows;  // of references: those that are worked on now
  int64_t n_apart;                      // tiles so far apart never reach the same pixel
  int64_t first_out_row, n_out_rows;    // of the picture: those that are wanted
  double weight_floor;                  // added to a gain before its inverse is taken as a weight
  const float *noisy;                   // (H, W, C)
  const double *mix, *sigma2;           // (C, C): what is estimated, as sums of channels; (C,): variance of its noise
  double *sums;                         // (C, 3, n_out_rows, W): added to, see local_groups.hpp
};

struct FillingTask {
  int64_t n_groups, n_patches, n_values, n_threads;  // patches of each group, values of each patch
  double s;                                          // variance of what is known
  const float *y, *pilot;                            // (n_groups, n_patches, n_values)
  const uint8_t *observed;                           // the same shape: which of y are known
  float *mean, *variance;                            // results, the same shape
};

}  // namespace
