// Convolutions of single images, which lie in a core's cache.
//
// An image is kept as planes of 16 channels, [channels / 16, height, width, 16], with a border of
// zeros, and a kernel as [features / 16, channels / 16, size, size, 16, 16].

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu_vectors.h"

namespace {

struct Shape {
  Index batch, height, width, size, stride;
  Index half() const { return size / 2; }
  Index out_height() const { return (height - 1) / stride + 1; }
  Index out_width() const { return (width - 1) / stride + 1; }
  Index pixels() const { return height * width; }
  Index out_pixels() const { return out_height() * out_width(); }
  // With a border, and even where kernels are of three pixels: the last tile may reach further.
  Index row() const { return (width + (size - 1) / 2 * (2 + width % 2)) * kPlane; }
  Index plane() const { return (height + (size - 1) / 2 * (2 + height % 2)) * row(); }
};

// A convolution block.
struct Layer {
  Shape shape;
  Index channels, features;
  bool has_relu, is_normalized;
  Index image() const { return shape.pixels() * channels; }
  Index output() const { return shape.out_pixels() * features; }
  Index kernel() const { return shape.size * shape.size * channels * features; }
  Index image_planes() const { return channels / kPlane * shape.plane(); }
  Index output_planes() const { return features / kPlane * shape.plane(); }
};

// Planes of an image: `value(offset, channel)` of vectors of a pixel. With `step` 2, of an image
// of half the height and width, between whose pixels are zeros.
template <typename T, typename Value>
void Pack(const Shape& shape, Index step, Index channels, T* planes, Value value) {
  const Index half = shape.half();
  if (half > 0 || step > 1) std::memset(planes, 0, channels / kPlane * shape.plane() * sizeof(T));
  Index from = 0;
  for (Index y = half; y < shape.height + half; y += step)
    for (Index x = half; x < shape.width + half; x += step, from += channels)
      for (Index plane = 0; plane < channels / kPlane; ++plane) {
        T* to = planes + plane * shape.plane() + y * shape.row() + x * kPlane;
        for (Index n = 0; n < kPlane; n += kLanes<T>)
          Store(to + n, value(from + plane * kPlane + n, plane * kPlane + n));
      }
}

// Pixels of a row, in one plane of features: convolved, and given to `use(pixel, feature, sum)`.
template <typename T, int kSize, int kStride, int kPixels, typename Use>
inline __attribute__((always_inline)) void ConvolvePixels(const Shape& shape, Index channels,
                                                          const T* planes, const T* kernel,
                                                          Use use) {
  Vector<T> sums[kPixels][kVectors<T>] = {};
  for (Index plane = 0; plane < channels / kPlane; ++plane)
    for (int i = 0; i < kSize; ++i)
      for (int j = 0; j < kSize; ++j) {
        const T* from = planes + plane * shape.plane() + i * shape.row() + j * kPlane;
        for (Index channel = 0; channel < kPlane; ++channel, kernel += kPlane) {
          Vector<T> weights[kVectors<T>];
          for (Index n = 0; n < kVectors<T>; ++n) weights[n] = Load(kernel + n * kLanes<T>);
#pragma GCC unroll 16
          for (int pixel = 0; pixel < kPixels; ++pixel)
            for (Index n = 0; n < kVectors<T>; ++n)
              sums[pixel][n] += weights[n] * from[pixel * kStride * kPlane + channel];
        }
      }
#pragma GCC unroll 16
  for (int pixel = 0; pixel < kPixels; ++pixel)
    for (Index n = 0; n < kVectors<T>; ++n) use(pixel, n * kLanes<T>, sums[pixel][n]);
}

template <typename T, int kSize, int kStride, int kPixels, typename Use>
inline void ConvolveRow(const Shape& shape, Index channels, const T* planes, const T* kernel,
                        Index width, Index x, Use use) {
  for (; x + kPixels <= width; x += kPixels)
    ConvolvePixels<T, kSize, kStride, kPixels>(
        shape, channels, planes + x * kStride * kPlane, kernel,
        [&](Index pixel, Index n, Vector<T> sum) { use(x + pixel, n, sum); });
  if constexpr (kPixels > 1)
    ConvolveRow<T, kSize, kStride, kPixels / 2>(shape, channels, planes, kernel, width, x, use);
}

template <typename T, int kSize, int kStride, typename Use>
void ConvolveSized(const Shape& shape, Index channels, Index features, const T* planes,
                   const T* kernel, Use use) {
  const Index height = (shape.height - 1) / kStride + 1, width = (shape.width - 1) / kStride + 1;
  for (Index plane = 0; plane < features / kPlane; ++plane) {
    const T* weights = kernel + plane * kSize * kSize * channels * kPlane;
    for (Index y = 0; y < height; ++y)
      ConvolveRow<T, kSize, kStride, static_cast<int>(kAccumulators / kVectors<T>)>(
          shape, channels, planes + y * kStride * shape.row(), weights, width, 0,
          [&](Index x, Index n, Vector<T> sum) {
            const Index feature = plane * kPlane + n;
            use((y * width + x) * features + feature, feature, sum);
          });
  }
}

// The kernel's gradient of some images, from their planes and those of a cotangent, one image
// after the other.
template <typename T>
void KernelGradient(const Shape& shape, Index channels, Index features, Index num_images,
                    const T* images, const T* cotangents, T* gradient) {
  constexpr int kRows = kAccumulators / kVectors<T>;
  const Index half = shape.half(), step = shape.stride * kPlane;
  for (Index to = 0; to < features; to += kPlane)
    for (Index from = 0; from < channels; from += kPlane)
      for (Index i = 0; i < shape.size; ++i)
        for (Index j = 0; j < shape.size; ++j)
          for (Index first = 0; first < kPlane; first += kRows) {
            Vector<T> sums[kRows][kVectors<T>] = {};
            for (Index image = 0; image < num_images; ++image)
              for (Index y = 0; y < shape.height; y += shape.stride) {
                const T* g = cotangents + (image * features + to) / kPlane * shape.plane() +
                             (y + half) * shape.row() + half * kPlane;
                const T* h = images + (image * channels + from) / kPlane * shape.plane() +
                             (y + i) * shape.row() + j * kPlane + first;
                for (Index x = 0; x < shape.out_width(); ++x, g += step, h += step) {
                  Vector<T> values[kVectors<T>];
                  for (Index n = 0; n < kVectors<T>; ++n) values[n] = Load(g + n * kLanes<T>);
#pragma GCC unroll 16
                  for (int row = 0; row < kRows; ++row)
                    for (Index n = 0; n < kVectors<T>; ++n) sums[row][n] += values[n] * h[row];
                }
              }
            T* out = gradient + ((i * shape.size + j) * channels + from + first) * features + to;
#pragma GCC unroll 16
            for (int row = 0; row < kRows; ++row, out += features)
              for (Index n = 0; n < kVectors<T>; ++n) Store(out + n * kLanes<T>, sums[row][n]);
          }
}

// Sums over pixels of an output, for every feature: `value(offset, feature)` for every vector.
template <typename T, typename Value>
void Sum(const Shape& shape, Index features, T* sums, Value value) {
  for (Index feature = 0; feature < features; feature += kLanes<T>) {
    Vector<T> sum = {};
    for (Index pixel = 0; pixel < shape.out_pixels(); ++pixel)
      sum += value(pixel * features + feature, feature);
    Store(sums + feature, sum);
  }
}

// Means over batch and pixels of what `Sum` gave for every image, [batch, features].
template <typename T>
std::vector<T> Means(const Shape& shape, Index features, const std::vector<T>& sums) {
  std::vector<T> means(features);
  for (Index feature = 0; feature < features; ++feature) {
    double total = 0;
    for (Index image = 0; image < shape.batch; ++image) total += sums[image * features + feature];
    means[feature] = static_cast<T>(total / static_cast<double>(shape.batch * shape.out_pixels()));
  }
  return means;
}

// What a convolution reads; what is not a number stays so, as it is to be seen in the outputs.
template <typename T>
inline Vector<T> Hidden(bool has_relu, const T* from) {
  const Vector<T> value = Load(from);
  return !has_relu ? value : (value <= Vector<T>{} ? Vector<T>{} : value);
}

// Where the gate is positive, the value; else zero. Without a ReLU, the value.
template <typename T>
inline Vector<T> Gated(bool has_relu, const T* gate, Vector<T> value) {
  return !has_relu ? value : (Load(gate) > Vector<T>{} ? value : Vector<T>{});
}

}  // namespace
