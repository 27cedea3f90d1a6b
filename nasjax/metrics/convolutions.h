// Convolutions of images by kernels of any size, in the way that is fastest for each.

#pragma once

#include <cstdint>
#include <vector>

#include "conv_images.h"
#include "cpu_vectors.h"
#include "winograd.h"

namespace {

// Whether a convolution goes tile by tile.
inline bool HasTiles(Index size, Index stride) { return size == 3 && stride == 1; }

// A kernel as `Convolve` reads it: [outputs / 16, inputs / 16, size, size, 16, 16] or, of tiles,
// [outputs / 16, positions, inputs / 16, 16, 16]. Transposed, for the way back, if that is asked.
template <typename T>
std::vector<T> Packed(ffi::ThreadPool& pool, const T* kernel, const Layer& layer, bool is_back) {
  const Index size = layer.shape.size, channels = layer.channels, features = layer.features;
  const Index inputs = is_back ? features : channels, outputs = is_back ? channels : features;
  const bool has_tiles = HasTiles(size, is_back ? 1 : layer.shape.stride);
  constexpr Index kBlock = kPlane * kPlane;
  const Index taps = size * size, num_blocks = inputs / kPlane;
  std::vector<T> packed((has_tiles ? kPositions : taps) * channels * features);
  ForAll(pool, outputs / kPlane, [&](Index plane) {
    T own[9 * kBlock];
    for (Index part = 0; part < num_blocks; ++part) {
      T* block = has_tiles ? own : packed.data() + (plane * num_blocks + part) * taps * kBlock;
      for (Index tap = 0; tap < taps; ++tap)
        for (Index row = 0; row < kPlane; ++row)
          for (Index n = 0; n < kPlane; ++n) {
            const Index input = part * kPlane + row, output = plane * kPlane + n;
            block[(tap * kPlane + row) * kPlane + n] =
                is_back ? kernel[((taps - 1 - tap) * channels + output) * features + input]
                        : kernel[(tap * channels + input) * features + output];
          }
      if (has_tiles)
        TransformKernel(own, packed.data() + (plane * kPositions * num_blocks + part) * kBlock,
                        num_blocks * kBlock);
    }
  });
  return packed;
}

// An image convolved: `use(offset, feature, sum)` for vectors of features of a pixel.
template <typename T, typename Use>
void Convolve(const Shape& shape, Index stride, Index channels, Index features, const T* planes,
              const T* kernel, Use use) {
  if (HasTiles(shape.size, stride))
    ConvolveTiles<T, static_cast<int>(kAccumulators / kVectors<T>)>(shape, channels, features,
                                                                    planes, kernel, 0, use);
  else if (shape.size == 1 && stride == 1)
    ConvolveSized<T, 1, 1>(shape, channels, features, planes, kernel, use);
  else if (shape.size == 1)
    ConvolveSized<T, 1, 2>(shape, channels, features, planes, kernel, use);
  else
    ConvolveSized<T, 3, 2>(shape, channels, features, planes, kernel, use);
}

// The kernel's gradient of some images, from their planes and those of a cotangent, one image
// after the other.
template <typename T>
void Gradient(const Layer& layer, Index num_images, const T* images, const T* cotangents,
              T* gradient) {
  const auto compute =
      HasTiles(layer.shape.size, layer.shape.stride) ? TileGradient<T> : KernelGradient<T>;
  compute(layer.shape, layer.channels, layer.features, num_images, images, cotangents, gradient);
}

}  // namespace
