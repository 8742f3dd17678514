// Local groups of similar patches: found (block_matching.hpp), estimated (nl_ridge.hpp), added up over the picture.
//
// References are worked on in tiles. Tiles that may reach the same pixel belong to different phases, so that threads
// never meet, and every pixel gets its sums in the order of the phases: results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "block_matching.hpp"
#include "nl_ridge.hpp"
#include "tasks.hpp"
#include "threads.hpp"

namespace {

// groups (n_rows, n_columns, n_similar) = numbers of the patches, row by row of their corners
void run_matching(const MatchingTask &task) {
  Phases phases;
  const int64_t size = task.tile, across = n_tiles(task.n_columns, size), n_corners = task.width - task.patch_size + 1;
  phases.add(n_tiles(task.n_rows, size) * across, [=, &task](int64_t i) {
    const Span rows = tile(task.rows, task.n_rows, size, i / across);
    const Span columns = tile(task.columns, task.n_columns, size, i % across);
    BlockMatching search(task, rows, columns);
    std::vector<int64_t> corners(columns.count * task.n_similar * 2);
    for (int64_t y = 0; y < rows.count; ++y) {
      search.row(rows.places[y], corners.data());
      int64_t *out = task.groups + ((i / across * size + y) * task.n_columns + i % across * size) * task.n_similar;
      for (int64_t k = 0; k < columns.count * task.n_similar; ++k)
        out[k] = corners[2 * k] * n_corners + corners[2 * k + 1];
    }
  });
  phases.run(task.n_threads);
}

class TileOfGroups {
  const LocalGroupsTask &task;
  const MatchingTask &matching;
  const Span rows, columns;
  const Window noisy, pilot;
  BlockMatching search;
  Groups groups;

  // Patches of the group, less their pilot's mean, which is returned: of one channel.
  float gather(const int64_t *corners, int64_t channel) {
    const int64_t p = matching.patch_size, n = matching.n_similar;
    const auto row = [&](const Window &window, int64_t k, int64_t y) {
      return window.row(channel, corners[2 * k] + y - window.top) + corners[2 * k + 1] - window.left;
    };
    const float around = row(pilot, 0, 0)[0];  // sums of differences from it keep their digits
    double total = 0;
    for (int64_t k = 0; k < n; ++k) {
      float sum = 0;
      for (int64_t y = 0; y < p; ++y)
        for (int64_t x = 0; x < p; ++x) sum += row(pilot, k, y)[x] - around;
      total += sum;
    }
    const float centre = around + float(total / (n * p * p));
    for (int64_t k = 0; k < n; ++k)
      for (int64_t y = 0; y < p; ++y) {
        const float *of_pilot = row(pilot, k, y), *of_noisy = row(noisy, k, y);
        float *to_pilot = groups.pilot(k) + y * p, *to_noisy = groups.noisy(k) + y * p;
        for (int64_t x = 0; x < p; ++x) to_pilot[x] = of_pilot[x] - centre, to_noisy[x] = of_noisy[x] - centre;
      }
    return centre;
  }

  // Adds weight x mean, weight x (mean^2 + variance), weight.
  void add(const int64_t *corners, int64_t channel, float centre) {
    const int64_t p = matching.patch_size, n_values = task.n_out_rows * matching.width;
    double *sums = task.sums + 3 * channel * n_values;
    for (int64_t k = 0; k < matching.n_similar; ++k) {
      const double gain = groups.gain(k), weight = 1 / (gain + task.weight_floor);
      const double variance = task.sigma2[channel] * gain;
      const int64_t top = corners[2 * k] - task.first_out_row;
      for (int64_t y = std::max<int64_t>(0, -top); y < std::min(p, task.n_out_rows - top); ++y) {
        const float *from = groups.estimate(k) + y * p;
        double *to = sums + (top + y) * matching.width + corners[2 * k + 1];
        for (int64_t x = 0; x < p; ++x) {
          const double mean = from[x] + centre;
          to[x] += weight * mean;
          to[x + n_values] += weight * (mean * mean + variance);
          to[x + 2 * n_values] += weight;
        }
      }
    }
  }

public:
  TileOfGroups(const LocalGroupsTask &task, Span rows, Span columns)
      : task(task), matching(task.matching), rows(rows), columns(columns),
        noisy(matching, task.noisy, task.mix, matching.n_channels, rows, columns),
        pilot(matching, matching.pixels, task.mix, matching.n_channels, rows, columns), search(matching, rows, columns),
        groups(matching.n_similar, matching.patch_size * matching.patch_size) {}

  void run() {
    std::vector<int64_t> corners(columns.count * matching.n_similar * 2);
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t top = rows.places[i], end = top + matching.patch_size + matching.radius;
      if (end <= task.first_out_row || top - matching.radius >= task.first_out_row + task.n_out_rows) continue;
      search.row(top, corners.data());
      for (int64_t j = 0; j < columns.count; ++j)
        for (int64_t channel = 0; channel < matching.n_channels; ++channel) {
          const int64_t *group = &corners[j * matching.n_similar * 2];
          const float centre = gather(group, channel);
          groups.solve(task.sigma2[channel]);
          add(group, channel, centre);
        }
    }
  }
};

void run_local_groups(const LocalGroupsTask &task) {
  const MatchingTask &matching = task.matching;
  const int64_t size = matching.tile, across = n_tiles(matching.n_columns, size), apart = task.n_apart;
  Phases phases;
  for (int64_t y = 0; y < apart; ++y)
    for (int64_t x = 0; x < apart; ++x) {
      const auto count = [=](int64_t n, int64_t first) { return n > first ? (n - first + apart - 1) / apart : 0; };
      const int64_t n_across = count(across, x), n_down = count(task.n_tile_rows, y);
      phases.add(n_across * n_down, [=, &task, &matching](int64_t i) {
        const int64_t down = task.first_tile_row + y + i / n_across * apart;
        TileOfGroups(task, tile(matching.rows, matching.n_rows, size, down),
                     tile(matching.columns, matching.n_columns, size, x + i % n_across * apart)).run();
      });
    }
  phases.run(matching.n_threads);
}

}  // namespace
