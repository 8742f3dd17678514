// The nearest patches around each reference patch, see restoration/non_local/block_matching.py: for each offset of the
// neighbourhood squared differences are added up over the rows of a patch, for all columns at once, then over columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tasks.hpp"
#include "vectors.hpp"

namespace {

constexpr float OUTSIDE = 1e18f;  // distance of a place that is not in the picture

struct Span {  // of a tile along one axis
  const int64_t *places;
  int64_t count;
  int64_t first() const { return places[0]; }
  int64_t length(int64_t patch_size) const { return places[count - 1] - places[0] + patch_size; }
};

inline int64_t n_tiles(int64_t n_places, int64_t size) { return (n_places + size - 1) / size; }
inline Span tile(const int64_t *places, int64_t n_places, int64_t size, int64_t i) {
  return {places + i * size, std::min(size, n_places - i * size)};
}

// The picture around a tile, `radius` pixels further on all sides, as planes; zero outside the picture.
class Window {
  int64_t height, stride;
  Array<float> planes;

public:
  int64_t top, left;  // in the picture

  // Plane m is the sum over channels c of mix[m, c] times the channel.
  Window(const MatchingTask &task, const float *pixels, const double *mix, int64_t n_planes, Span rows, Span columns)
      : height(rows.length(task.patch_size) + 2 * task.radius),
        stride(round_up(columns.length(task.patch_size) + 2 * task.radius, WIDTH<float>)),
        planes(n_planes * height * stride + 2 * WIDTH<float>),  // vectors may reach beyond the last row
        top(rows.first() - task.radius), left(columns.first() - task.radius) {
    const int64_t n = task.n_channels, first = std::max<int64_t>(0, -left);
    const int64_t last = std::min(stride, task.width - left);
    for (int64_t y = std::max<int64_t>(0, -top); y < std::min(height, task.height - top); ++y)
      for (int64_t m = 0; m < n_planes; ++m)
        for (int64_t c = 0; c < n; ++c) {
          const float factor = mix[m * n + c];
          if (factor == 0) continue;
          const float *from = pixels + ((top + y) * task.width + left) * n + c;
          float *to = &planes[(m * height + y) * stride];
          for (int64_t x = first; x < last; ++x) to[x] += factor * from[x * n];
        }
  }
  const float *row(int64_t plane, int64_t y) const { return &planes[(plane * height + y) * stride]; }
};

// The n smallest keys in ascending order, of equal ones the first: key and index in the halves of a word.
inline void smallest(const int32_t *keys, int64_t count, int64_t n, Word *out) {
  int32_t low = -1, high = INT32_MAX;  // becomes the n-th smallest
  while (low < high) {
    const int32_t middle = int32_t((int64_t(low) + high) >> 1);
    int32_t n_below = 0;
    for (int64_t i = 0; i < count; ++i) n_below += keys[i] <= middle;
    if (n_below >= n)
      high = middle;
    else
      low = middle + 1;
  }
  int64_t n_found = 0;
  const auto take = [&](int64_t i) { out[n_found++] = Word(uint32_t(keys[i] + 1)) << 32 | Word(i); };
  for (int64_t i = 0; i < count; ++i)
    if (keys[i] < low) take(i);
  for (int64_t i = 0; n_found < n; ++i)
    if (keys[i] == low) take(i);
  std::sort(out, out + n);
}

// Searches for the references of a tile, row by row.
class BlockMatching {
  const MatchingTask &task;
  const Window window;
  const Span columns;
  const int64_t side, n_offsets;
  Array<int32_t> keys;        // (references, offsets): bits of the distances, which are in the order of the distances
  Array<float> strips, sums;  // over the rows of a patch, over all of it
  std::vector<Word> found;

  void measure(int64_t y, int64_t dy, int64_t dx) {
    const int64_t p = task.patch_size, r = task.radius, length = columns.length(p);
    for (int64_t x = 0; x < length; x += WIDTH<float>) {
      Vec<float> total = {};
      for (int64_t m = 0; m < task.n_planes; ++m)
        for (int64_t i = 0; i < p; ++i) {
          const Vec<float> difference = vec(window.row(m, y + i) + r + x) - vec(window.row(m, y + i + dy) + r + x + dx);
          total += difference * difference;
        }
      vec(&strips[x]) = total;
    }
    for (int64_t x = 0; x <= length - p; x += WIDTH<float>) {
      Vec<float> total = vec(&strips[x]);
      for (int64_t i = 1; i < p; ++i) total += vec(&strips[x + i]);
      vec(&sums[x]) = total;
    }
  }

public:
  BlockMatching(const MatchingTask &task, Span rows, Span columns)
      : task(task), window(task, task.pixels, task.mix, task.n_planes, rows, columns), columns(columns),
        side(2 * task.radius + 1), n_offsets(side * side), keys(columns.count * n_offsets),
        strips(columns.length(task.patch_size) + task.patch_size + 2 * WIDTH<float>), sums(strips.size()),
        found(task.n_similar) {}

  // For every reference in the row at `top` of the picture the corners (columns.count, n_similar, 2) of its group.
  void row(int64_t top, int64_t *corners) {
    const int64_t r = task.radius, last_row = task.height - task.patch_size, last_column = task.width - task.patch_size;
    int32_t far;
    std::memcpy(&far, &OUTSIDE, sizeof far);
    int64_t offset = 0;
    for (int64_t dy = -r; dy <= r; ++dy) {
      const bool is_inside = 0 <= top + dy && top + dy <= last_row;
      for (int64_t dx = -r; dx <= r; ++dx, ++offset) {
        if (is_inside) measure(top - window.top, dy, dx);
        for (int64_t i = 0; i < columns.count; ++i) {
          const int64_t column = columns.places[i] + dx;
          int32_t &key = keys[i * n_offsets + offset];
          if (is_inside && 0 <= column && column <= last_column)
            std::memcpy(&key, &sums[columns.places[i] - columns.first()], sizeof key);
          else
            key = far;
        }
      }
    }
    const int64_t own = n_offsets / 2;
    for (int64_t i = 0; i < columns.count; ++i) {
      int32_t *mine = &keys[i * n_offsets];
      mine[own] = -1;  // before any equal one
      smallest(mine, n_offsets, task.n_similar, found.data());
      for (const Word word : found) {
        const int64_t index = uint32_t(word), chosen = mine[index] < far ? index : own;  // small pictures: repeated
        *corners++ = top + chosen / side - r;
        *corners++ = columns.places[i] + chosen % side - r;
      }
    }
  }
};

}  // namespace
