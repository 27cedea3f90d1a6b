// Means over 3 x 3 pixels, of which those outside of the image don't count.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu_vectors.h"

namespace {

// One over how many of three neighbours lie inside an axis.
template <typename T>
std::vector<T> Shares(Index length) {
  std::vector<T> shares(length);
  for (Index at = 0; at < length; ++at)
    shares[at] = T(1) / static_cast<T>(1 + (at > 0) + (at < length - 1));
  return shares;
}

// The pool of an image, [height, width, channels], or its transpose, added to `total` if that is
// not null. Channels are a multiple of 16.
template <typename T>
void Pool(Index height, Index width, Index channels, bool is_transposed, const T* image,
          const T* total, T* to) {
  const auto of_rows = Shares<T>(height), of_columns = Shares<T>(width);
  const Index row = width * channels;
  T* sums = Scratch<T>(0, row);
  for (Index y = 0; y < height; ++y) {
    const Index first = std::max<Index>(y - 1, 0), last = std::min(y + 1, height - 1);
    for (Index at = 0; at < row; at += kLanes<T>) {
      Vector<T> sum = {};
      for (Index from = first; from <= last; ++from)
        sum += Load(image + from * row + at) * of_rows[is_transposed ? from : y];
      Store(sums + at, sum);
    }
    for (Index x = 0; x < width; ++x) {
      const Index begin = std::max<Index>(x - 1, 0), end = std::min(x + 1, width - 1);
      for (Index channel = 0; channel < channels; channel += kLanes<T>) {
        Vector<T> sum = {};
        for (Index from = begin; from <= end; ++from)
          sum += Load(sums + from * channels + channel) * of_columns[is_transposed ? from : x];
        const Index at = (y * width + x) * channels + channel;
        Store(to + at, total == nullptr ? sum : sum + Load(total + at));
      }
    }
  }
}

}  // namespace
