// What examples have in common: inner products of gradients, and ReLUs that agree.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu_vectors.h"

namespace {

// The inner products of rows [batch, size] with each other, added to `before`, [batch, batch].
// Sums are of vectors over kColumns columns, then of doubles: as many as fit into 32 MiB or are
// needed, in parts that threads share, as they do blocks of rows.
template <typename T>
void Products(ffi::ThreadPool& pool, Index batch, Index size, const T* rows, const T* before,
              T* after) {
  constexpr Index kColumns = 1024, kRows = 64, kTile = kAccumulators == 16 ? 4 : 2;
  const Index num_columns = (size + kColumns - 1) / kColumns;
  const Index num_blocks = (batch + kRows - 1) / kRows;
  const Index num_parts = std::clamp<Index>((Index{1} << 22) / (batch * batch), 1, num_columns);
  std::vector<double> parts(num_parts * batch * batch);
  ForAll(pool, num_parts * num_blocks, [&](Index index) {
    const Index part = index % num_parts, begin = index / num_parts * kRows;
    double* own = parts.data() + part * batch * batch;
    for (Index column = part; column < num_columns; column += num_parts)
      for (Index one = begin; one < std::min(batch, begin + kRows); one += kTile)
        for (Index other = 0; other <= one; other += kTile) {
          const Index first = column * kColumns, last = std::min(size, first + kColumns);
          Vector<T> sums[kTile][kTile] = {};
          const T *a[kTile], *b[kTile];
          for (Index n = 0; n < kTile; ++n) {  // at the edge, a row takes the place of another
            a[n] = rows + std::min(one + n, batch - 1) * size;
            b[n] = rows + std::min(other + n, batch - 1) * size;
          }
          Index at = first;
          for (; at + kLanes<T> <= last; at += kLanes<T>) {
            Vector<T> values[kTile];
            for (Index m = 0; m < kTile; ++m) values[m] = Load(b[m] + at);
#pragma GCC unroll 4
            for (Index n = 0; n < kTile; ++n)
#pragma GCC unroll 4
              for (Index m = 0; m < kTile; ++m) sums[n][m] += Load(a[n] + at) * values[m];
          }
          for (Index n = 0; n < kTile && one + n < batch; ++n)
            for (Index m = 0; m < kTile && other + m < batch; ++m) {
              double sum = 0;
              for (Index lane = 0; lane < kLanes<T>; ++lane) sum += sums[n][m][lane];
              for (Index rest = at; rest < last; ++rest)
                sum += static_cast<double>(a[n][rest]) * b[m][rest];
              own[(one + n) * batch + other + m] += sum;
            }
        }
  });
  for (Index one = 0; one < batch; ++one)
    for (Index other = 0; other <= one; ++other) {
      double sum = 0;
      for (Index part = 0; part < num_parts; ++part)
        sum += parts[(part * batch + one) * batch + other];
      const Index at = one * batch + other, mirrored = other * batch + one;
      after[at] = before[at] + static_cast<T>(sum);
      if (at != mirrored) after[mirrored] = before[mirrored] + static_cast<T>(sum);
    }
}

// How many numbers of two examples, [batch, size], are both positive or both not, times `weight`,
// added to `before`, [batch, batch].
template <typename T>
void Agreement(ffi::ThreadPool& pool, Index batch, Index size, double weight, const T* x,
               const T* before, T* after) {
  const Index num_words = (size + 63) / 64;
  std::vector<uint64_t> words(batch * num_words);
  ForAll(pool, batch, [&](Index one) {
    for (Index word = 0; word < num_words; ++word) {
      const T* from = x + one * size + word * 64;
      const Index count = std::min<Index>(64, size - word * 64);
      uint64_t bits = 0;
      for (Index bit = 0; bit < count; ++bit) bits |= static_cast<uint64_t>(from[bit] > 0) << bit;
      words[one * num_words + word] = bits;
    }
  });
  ForAll(pool, batch, [&](Index one) {
    for (Index other = 0; other < batch; ++other) {
      Index apart = 0;
      for (Index word = 0; word < num_words; ++word)
        apart +=
            __builtin_popcountll(words[one * num_words + word] ^ words[other * num_words + word]);
      const Index at = one * batch + other;
      after[at] = before[at] + static_cast<T>(weight * static_cast<double>(size - apart));
    }
  });
}

}  // namespace
