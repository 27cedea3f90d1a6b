// How convolution blocks move, forward and backward, as their weights grow in proportion to
// themselves: for the product of Hessian, gradient and parameters.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conv_images.h"
#include "convolutions.h"
#include "cpu_vectors.h"

namespace {

// How the output of a normalised or plain block moves, as its kernel moves along itself and its
// input along a tangent. Arguments: the tangent, z, rate, and total or nothing. Results: how z and
// rate move, and total plus the former or nothing.
template <typename T>
void Tangent(ffi::ThreadPool& pool, const Layer& layer, double epsilon, const T* x, const T* kernel,
             bool has_total, Arguments<T> more) {
  const T *bias = more.Next(), *tangent = more.Next(), *z = more.Next(), *rate = more.Next();
  const T* total = has_total ? more.Next() : nullptr;
  T *moved = more.NextResult(), *moved_rate = more.NextResult();
  T* value = has_total ? more.NextResult() : nullptr;
  const Shape& shape = layer.shape;
  const Index features = layer.features;
  const auto packed = Packed(pool, kernel, layer, false);
  std::vector<T> centre(layer.is_normalized ? shape.batch * features : 0), along(centre.size());
  ForAll(pool, shape.batch, [&](Index image) {
    T* planes = Scratch<T>(0, layer.image_planes());
    const T *gate = x + image * layer.image(), *from = tangent + image * layer.image();
    Pack(shape, 1, layer.channels, planes,
         [&](Index at, Index) { return Gated(layer.has_relu, gate + at, Load(from + at)); });
    T* to = moved + image * layer.output();
    const T* own = z + image * layer.output();
    Convolve(shape, shape.stride, layer.channels, features, planes, packed.data(),
             [&](Index at, Index feature, Vector<T> sum) {
               // Without normalisation, what comes of the kernel is the output itself.
               if (!layer.is_normalized) sum += Load(own + at) - Load(bias + feature);
               Store(to + at, sum);
             });
    if (!layer.is_normalized) return;
    Sum(shape, features, centre.data() + image * features,
        [&](Index at, Index) { return Load(to + at); });
    Sum(shape, features, along.data() + image * features,
        [&](Index at, Index) { return Load(to + at) * Load(own + at); });
  });
  std::vector<T> shrink(features);
  if (layer.is_normalized) {
    centre = Means(shape, features, centre);
    along = Means(shape, features, along);
    // Normalisation undoes what comes of the kernel, but for epsilon.
    for (Index feature = 0; feature < features; ++feature) {
      const T one = rate[feature];
      shrink[feature] = static_cast<T>(epsilon) * one * one;
      moved_rate[feature] = -one * (1 - shrink[feature]) - one * one * along[feature];
    }
  } else {
    std::fill(moved_rate, moved_rate + features, T(0));
    if (value == nullptr) return;
  }
  ForAll(pool, shape.batch, [&](Index image) {
    for (Index pixel = image * layer.output(); pixel < (image + 1) * layer.output();
         pixel += features)
      for (Index feature = 0; feature < features; feature += kLanes<T>) {
        const Index at = pixel + feature;
        Vector<T> all = Load(moved + at);
        if (layer.is_normalized) {
          const Vector<T> own = Load(z + at);
          all = own * Load(shrink.data() + feature) +
                Load(rate + feature) *
                    (all - Load(centre.data() + feature) - own * Load(along.data() + feature));
          Store(moved + at, all);
        }
        if (value != nullptr) Store(value + at, all + Load(total + at));
      }
  });
}

// How the way back moves. Arguments: the kernel's gradient, z, rate, how they move, the cotangent
// of the output and how it moves, then the input's tangent and the total, each or nothing.
// Results: the inner product of the gradient with its movement, [], and, if it is asked for, how
// the input's cotangent moves.
template <typename T>
void TangentBack(ffi::ThreadPool& pool, const Layer& layer, const T* x, const T* kernel,
                 bool has_tangent, bool has_input, bool has_total, Arguments<T> more) {
  const T *gradient = more.Next(), *z = more.Next(), *rate = more.Next();
  const T *moved_z = more.Next(), *moved_rate = more.Next();
  const T *g = more.Next(), *moved_g = more.Next();
  const T* tangent = has_tangent ? more.Next() : nullptr;
  const T* total = has_total ? more.Next() : nullptr;
  T* product = more.NextResult();
  T* to = has_input ? more.NextResult() : nullptr;
  const Shape& shape = layer.shape;
  const Index features = layer.features, output = layer.output();
  // Means of g, g z, moved g, and moved g z + g moved z.
  std::vector<T> means[4];
  if (layer.is_normalized) {
    for (auto& sums : means) sums.resize(shape.batch * features);
    ForAll(pool, shape.batch, [&](Index image) {
      for (Index feature = 0; feature < features; feature += kLanes<T>) {
        Vector<T> sums[4] = {};
        for (Index at = image * output + feature; at < (image + 1) * output; at += features) {
          const Vector<T> one = Load(g + at), own = Load(z + at), moved = Load(moved_g + at);
          sums[0] += one;
          sums[1] += one * own;
          sums[2] += moved;
          sums[3] += moved * own + one * Load(moved_z + at);
        }
        for (int n = 0; n < 4; ++n) Store(means[n].data() + image * features + feature, sums[n]);
      }
    });
    for (auto& sums : means) sums = Means(shape, features, sums);
  }
  const auto by_gradient = Packed(pool, gradient, layer, false);
  std::vector<T> packed;
  if (has_input) packed = Packed(pool, kernel, layer, true);
  std::vector<double> products(shape.batch);
  ForAll(pool, shape.batch, [&](Index image) {
    T* planes = Scratch<T>(0, layer.image_planes());
    T* g_planes = Scratch<T>(1, layer.output_planes());
    T *gy = Scratch<T>(2, output), *moved = Scratch<T>(3, output);
    const Index first = image * output;
    for (Index pixel = 0; pixel < output; pixel += features)
      for (Index feature = 0; feature < features; feature += kLanes<T>) {
        const Index own_at = first + pixel + feature, at = pixel + feature;
        Vector<T> one = Load(g + own_at), change = Load(moved_g + own_at);
        if (layer.is_normalized) {
          const Vector<T> own = Load(z + own_at), along = Load(means[1].data() + feature);
          one = one - Load(means[0].data() + feature) - own * along;
          change = change - Load(means[2].data() + feature) - Load(moved_z + own_at) * along -
                   own * Load(means[3].data() + feature);
          change = Load(moved_rate + feature) * one + Load(rate + feature) * change;
          one = Load(rate + feature) * one;
        }
        Store(gy + at, one);
        Store(moved + at, change);
      }
    // The gradient's movement is a product of cotangents and images; its inner product with the
    // gradient is that of cotangents and images convolved by the gradient.
    Vector<T> sum = {};
    const T* gate = x + image * layer.image();
    Pack(shape, 1, layer.channels, planes,
         [&](Index at, Index) { return Hidden(layer.has_relu, gate + at); });
    Convolve(shape, shape.stride, layer.channels, features, planes, by_gradient.data(),
             [&](Index at, Index, Vector<T> y) { sum += y * Load(moved + at); });
    if (has_tangent) {
      const T* from = tangent + image * layer.image();
      Pack(shape, 1, layer.channels, planes,
           [&](Index at, Index) { return Gated(layer.has_relu, gate + at, Load(from + at)); });
      Convolve(shape, shape.stride, layer.channels, features, planes, by_gradient.data(),
               [&](Index at, Index, Vector<T> y) { sum += y * Load(gy + at); });
    }
    for (Index n = 0; n < kLanes<T>; ++n) products[image] += sum[n];
    if (!has_input) return;
    // The kernel moves along itself: what passes it moves by itself, once more.
    Pack(shape, shape.stride, features, g_planes,
         [&](Index at, Index) { return Load(moved + at) + Load(gy + at); });
    T* own = to + image * layer.image();
    const T* added = total == nullptr ? nullptr : total + image * layer.image();
    Convolve(shape, 1, features, layer.channels, g_planes, packed.data(),
             [&](Index at, Index, Vector<T> y) {
               y = Gated(layer.has_relu, gate + at, y);
               Store(own + at, added == nullptr ? y : y + Load(added + at));
             });
  });
  double all = 0;
  for (const double one : products) all += one;
  *product = static_cast<T>(all);
}

}  // namespace
