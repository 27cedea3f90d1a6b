// Winograd's convolutions F(2 x 2, 3 x 3): sixteen products give four outputs of a kernel of nine.
//
// A tile of 4 x 4 inputs gives 2 x 2 outputs: both are transformed by sums and differences, and so
// is the kernel, so that all that is left are products at each of 16 positions. The gradient of the
// kernel is the transpose: products of transformed inputs and cotangents, summed over all tiles
// before they are transformed back. After Lavin and Gray, "Fast algorithms for convolutional neural
// networks" (CVPR 2016).

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conv_images.h"
#include "cpu_vectors.h"

namespace {

constexpr Index kPositions = 16;

// Tiles of an image, row by row.
struct Tiles {
  explicit Tiles(const Shape& shape)
      : width((shape.width + 1) / 2), count((shape.height + 1) / 2 * width), row(shape.row()) {}
  // Where a tile begins in a plane.
  Index At(Index tile) const { return tile / width * 2 * row + tile % width * 2 * kPlane; }

  Index width, count, row;
};

// One transform, of rows or of columns: what comes of four inputs.
template <typename V>
inline void OfInputs(const V in[4], V out[4]) {
  out[0] = in[0] - in[2];
  out[1] = in[1] + in[2];
  out[2] = in[2] - in[1];
  out[3] = in[1] - in[3];
}

// The transpose of what gives two outputs: what comes of two cotangents.
template <typename V>
inline void OfCotangents(const V in[2], V out[4]) {
  out[0] = in[0];
  out[1] = in[0] + in[1];
  out[2] = in[0] - in[1];
  out[3] = -in[1];
}

template <typename V>
inline void ToOutputs(const V in[4], V out[2]) {
  out[0] = in[0] + in[1] + in[2];
  out[1] = in[1] - in[2] - in[3];
}

template <typename V>
inline void OfKernel(const V in[3], V out[4]) {
  const V sum = in[0] + in[2];
  out[0] = in[0];
  out[1] = (sum + in[1]) / 2;
  out[2] = (sum - in[1]) / 2;
  out[3] = in[2];
}

// The transpose of `OfKernel`.
template <typename V>
inline void ToKernel(const V in[4], V out[3]) {
  const V half_sum = (in[1] + in[2]) / 2, half_difference = (in[1] - in[2]) / 2;
  out[0] = in[0] + half_sum;
  out[1] = half_difference;
  out[2] = half_sum + in[3];
}

// Columns, then rows of a square: `one` takes kFrom numbers to kTo.
template <int kFrom, int kTo, typename V, typename One>
inline void Square(const V in[kFrom][kFrom], V out[kTo][kTo], One one) {
  V half[kTo][kFrom];
  for (int j = 0; j < kFrom; ++j) {
    V column[kFrom], to[kTo];
    for (int i = 0; i < kFrom; ++i) column[i] = in[i][j];
    one(column, to);
    for (int i = 0; i < kTo; ++i) half[i][j] = to[i];
  }
  for (int i = 0; i < kTo; ++i) one(half[i], out[i]);
}

// Squares of 16 channels, transformed: `row` and `column` are between the numbers that are read,
// `to_row` and `to_column` between those that are written.
template <int kFrom, int kTo, typename T, typename One>
inline __attribute__((always_inline)) void Transform(const T* from, Index row, Index column, T* to,
                                                     Index to_row, Index to_column, One one) {
  for (Index n = 0; n < kPlane; n += kLanes<T>) {
    Vector<T> in[kFrom][kFrom], out[kTo][kTo];
    for (int i = 0; i < kFrom; ++i)
      for (int j = 0; j < kFrom; ++j) in[i][j] = Load(from + i * row + j * column + n);
    Square<kFrom, kTo>(in, out, one);
    for (int i = 0; i < kTo; ++i)
      for (int j = 0; j < kTo; ++j) Store(to + i * to_row + j * to_column + n, out[i][j]);
  }
}

// A tile; positions are `step` apart.
template <typename T>
inline void TransformInputs(const T* from, Index row, T* to, Index step) {
  Transform<4, 4>(from, row, kPlane, to, 4 * step, step, OfInputs<Vector<T>>);
}

// The cotangents of a tile's outputs. They lie one pixel in from the tile's begin.
template <typename T>
inline void TransformCotangents(const T* from, Index row, T* to, Index step) {
  Transform<2, 4>(from + row + kPlane, row, kPlane, to, 4 * step, step, OfCotangents<Vector<T>>);
}

// Some tiles convolved by a transformed kernel: `use` as in `Convolve`.
template <typename T, int kTiles, typename Use>
void ConvolveTiles(const Shape& shape, Index channels, Index features, const T* planes,
                   const T* kernel, Index first, Use use) {
  const Tiles tiles(shape);
  const Shape flat{1, 1, kTiles, 1, 1};
  const Index step = channels * kTiles + kPlane;  // as in `TileGradient`
  T* inputs = Scratch<T>(4, kPositions * step);
  T* products = Scratch<T>(5, kPositions * kPlane * kTiles);
  for (; first + kTiles <= tiles.count; first += kTiles) {
    for (Index plane = 0; plane < channels / kPlane; ++plane)
      for (Index tile = 0; tile < kTiles; ++tile)
        TransformInputs(planes + plane * shape.plane() + tiles.At(first + tile), tiles.row,
                        inputs + (plane * kTiles + tile) * kPlane, step);
    for (Index plane = 0; plane < features; plane += kPlane) {
      for (Index position = 0; position < kPositions; ++position)
        ConvolvePixels<T, 1, 1, kTiles>(
            flat, channels, inputs + position * step,
            kernel + (plane * kPositions + position * kPlane) * channels,
            [&](Index tile, Index n, Vector<T> sum) {
              Store(products + (position * kTiles + tile) * kPlane + n, sum);
            });
      for (Index tile = 0; tile < kTiles; ++tile)
        for (Index n = 0; n < kPlane; n += kLanes<T>) {
          Vector<T> in[4][4], out[2][2];
          for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
              in[i][j] = Load(products + ((4 * i + j) * kTiles + tile) * kPlane + n);
          Square<4, 2>(in, out, ToOutputs<Vector<T>>);
          const Index y = (first + tile) / tiles.width * 2, x = (first + tile) % tiles.width * 2;
          for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j)
              if (y + i < shape.height && x + j < shape.width)
                use(((y + i) * shape.width + x + j) * features + plane + n, plane + n, out[i][j]);
        }
    }
  }
  if constexpr (kTiles > 1)
    ConvolveTiles<T, kTiles / 2>(shape, channels, features, planes, kernel, first, use);
}

// The kernel's gradient of some images, from their planes and those of a cotangent, a few tiles
// after the others.
template <typename T>
void TileGradient(const Shape& shape, Index channels, Index features, Index num_images,
                  const T* images, const T* cotangents, T* gradient) {
  constexpr int kRows = kAccumulators / kVectors<T>;
  constexpr Index kBlock = kPlane * kPlane;
  const Tiles tiles(shape);
  constexpr Index at_once = 16;  // tiles whose transforms stay in the innermost caches
  T* inputs = Scratch<T>(4, kPositions * channels * (at_once + 1));
  T* outputs = Scratch<T>(5, kPositions * features * (at_once + 1));
  T* products = Scratch<T>(6, kPositions * channels * features);
  bool is_first = true;
  for (Index image = 0; image < num_images; ++image)
    for (Index begin = 0; begin < tiles.count; begin += at_once, is_first = false) {
      const Index count = std::min(at_once, tiles.count - begin), size = count * kPlane;
      const Index step = size + kPlane;  // or all positions would share few sets of the cache
      for (Index tile = 0; tile < count; ++tile) {
        const Index at = tiles.At(begin + tile);
        for (Index plane = 0; plane < channels / kPlane; ++plane)
          TransformInputs(images + (image * channels / kPlane + plane) * shape.plane() + at,
                          tiles.row, inputs + plane * kPositions * step + tile * kPlane, step);
        for (Index plane = 0; plane < features / kPlane; ++plane)
          TransformCotangents(cotangents + (image * features / kPlane + plane) * shape.plane() + at,
                              tiles.row, outputs + plane * kPositions * step + tile * kPlane, step);
      }
      T* to = products;
      for (Index g_plane = 0; g_plane < features / kPlane; ++g_plane)
        for (Index plane = 0; plane < channels / kPlane; ++plane)
          for (Index position = 0; position < kPositions; ++position) {
            const T* g = outputs + (g_plane * kPositions + position) * step;
            const T* h = inputs + (plane * kPositions + position) * step;
            for (Index first = 0; first < kPlane; first += kRows, to += kRows * kPlane) {
              Vector<T> sums[kRows][kVectors<T>] = {};
              if (!is_first)
#pragma GCC unroll 16
                for (int row = 0; row < kRows; ++row)
                  for (Index n = 0; n < kVectors<T>; ++n)
                    sums[row][n] = Load(to + row * kPlane + n * kLanes<T>);
              for (Index at = 0; at < size; at += kPlane) {
                Vector<T> values[kVectors<T>];
                for (Index n = 0; n < kVectors<T>; ++n) values[n] = Load(g + at + n * kLanes<T>);
#pragma GCC unroll 16
                for (int row = 0; row < kRows; ++row)
                  for (Index n = 0; n < kVectors<T>; ++n)
                    sums[row][n] += values[n] * h[at + first + row];
              }
#pragma GCC unroll 16
              for (int row = 0; row < kRows; ++row)
                for (Index n = 0; n < kVectors<T>; ++n)
                  Store(to + row * kPlane + n * kLanes<T>, sums[row][n]);
            }
          }
    }
  for (Index to = 0; to < features; to += kPlane)
    for (Index from = 0; from < channels; from += kPlane, products += kPositions * kBlock)
      for (Index row = 0; row < kPlane; ++row)
        Transform<4, 3>(products + row * kPlane, 4 * kBlock, kBlock,
                        gradient + (from + row) * features + to, 3 * channels * features,
                        channels * features, ToKernel<Vector<T>>);
}

// A block of a kernel, [3, 3, 16, 16], transformed; positions are `step` apart.
template <typename T>
void TransformKernel(const T* block, T* to, Index step) {
  constexpr Index kBlock = kPlane * kPlane;
  for (Index at = 0; at < kBlock; at += kPlane)
    Transform<3, 4>(block + at, 3 * kBlock, kBlock, to + at, 4 * step, step, OfKernel<Vector<T>>);
}

}  // namespace
