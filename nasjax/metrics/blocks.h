// Convolution blocks, forward and backward. Arrays are as `conv_kernels.cc` says.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "conv_images.h"
#include "convolutions.h"
#include "cpu_vectors.h"
#include "example_products.h"

namespace {

// The output and the statistics of its normalisation, and `total` plus the output.
// Arguments: bias, and total or nothing. Results: z, mean, rate, and total plus z or nothing.
template <typename T>
void Forward(ffi::ThreadPool& pool, const Layer& layer, double epsilon, const T* x, const T* kernel,
             bool has_total, Arguments<T> more) {
  const T* bias = more.Next();
  const T* total = has_total ? more.Next() : nullptr;
  T *z = more.NextResult(), *mean = more.NextResult(), *rate = more.NextResult();
  T* value = has_total ? more.NextResult() : nullptr;
  const Shape& shape = layer.shape;
  const Index features = layer.features;
  const auto packed = Packed(pool, kernel, layer, false);
  // Of every image: means, and sums of squared distances from them.
  std::vector<T> means(layer.is_normalized ? shape.batch * features : 0), squares(means.size());
  ForAll(pool, shape.batch, [&](Index image) {
    T* planes = Scratch<T>(0, layer.image_planes());
    const T* from = x + image * layer.image();
    Pack(shape, 1, layer.channels, planes,
         [&](Index at, Index) { return Hidden(layer.has_relu, from + at); });
    T* own = z + image * layer.output();
    const T* added = total == nullptr ? nullptr : total + image * layer.output();
    T* sum = value == nullptr ? nullptr : value + image * layer.output();
    Convolve(shape, shape.stride, layer.channels, features, planes, packed.data(),
             [&](Index at, Index feature, Vector<T> y) {
               y += Load(bias + feature);
               Store(own + at, y);
               if (!layer.is_normalized && sum != nullptr) Store(sum + at, y + Load(added + at));
             });
    if (!layer.is_normalized) return;
    T *m = means.data() + image * features, *s = squares.data() + image * features;
    Sum(shape, features, m, [&](Index at, Index) { return Load(own + at); });
    for (Index feature = 0; feature < features; ++feature)
      m[feature] /= static_cast<T>(shape.out_pixels());
    Sum(shape, features, s, [&](Index at, Index feature) {
      const Vector<T> distance = Load(own + at) - Load(m + feature);
      return distance * distance;
    });
  });
  if (!layer.is_normalized) {
    std::fill(mean, mean + features, T(0));
    std::fill(rate, rate + features, T(0));
    return;
  }
  for (Index feature = 0; feature < features; ++feature) {
    double centre = 0, spread = 0;
    for (Index image = 0; image < shape.batch; ++image) centre += means[image * features + feature];
    centre /= static_cast<double>(shape.batch);
    for (Index image = 0; image < shape.batch; ++image) {
      const double away = means[image * features + feature] - centre;
      spread += squares[image * features + feature] +
                static_cast<double>(shape.out_pixels()) * away * away;
    }
    spread /= static_cast<double>(shape.batch * shape.out_pixels());
    mean[feature] = static_cast<T>(centre);
    rate[feature] = static_cast<T>(1 / std::sqrt(spread + epsilon));
  }
  ForAll(pool, shape.batch, [&](Index image) {
    for (Index at = image * layer.output(); at < (image + 1) * layer.output(); at += features)
      for (Index feature = 0; feature < features; feature += kLanes<T>) {
        const Vector<T> own =
            (Load(z + at + feature) - Load(mean + feature)) * Load(rate + feature);
        Store(z + at + feature, own);
        if (value != nullptr) Store(value + at + feature, own + Load(total + at + feature));
      }
  });
}

// Everything that is read off a block on the way back.
// Arguments: z, mean, rate, the cotangents of the output, then totals for those of the input or
// nothing, and kernels or nothing, [kernels, batch, batch]. Results: the gradient of the first
// cotangent, for the batch; the kernels, to each of which the products are added of gradients of
// every example, of one cotangent from `first_example` on; sums over pixels of the convolution's
// output times its first cotangent, [batch, features]; and the cotangents of the input: each if it
// is asked for.
template <typename T>
void Back(ffi::ThreadPool& pool, const Layer& layer, const T* x, const T* kernel, bool has_gradient,
          bool has_fisher, Index num_cotangents, Index first_example, Index num_kernels,
          bool has_bias, bool has_input, bool has_totals, Arguments<T> more) {
  const T *z = more.Next(), *mean = more.Next(), *rate = more.Next();
  std::vector<const T*> cotangents, totals;
  for (Index n = 0; n < num_cotangents; ++n) cotangents.push_back(more.Next());
  for (Index n = 0; has_totals && n < num_cotangents; ++n) totals.push_back(more.Next());
  const T* kernels_before = num_kernels > 0 ? more.Next() : nullptr;
  T* gradient = has_gradient ? more.NextResult() : nullptr;
  T* kernels = num_kernels > 0 ? more.NextResult() : nullptr;
  T* fisher = has_fisher ? more.NextResult() : nullptr;
  std::vector<T*> inputs;
  for (Index n = 0; has_input && n < num_cotangents; ++n) inputs.push_back(more.NextResult());

  const Shape& shape = layer.shape;
  const Index features = layer.features, batch = shape.batch;
  std::vector<std::vector<T>> centres(num_cotangents), along(num_cotangents);
  if (layer.is_normalized) {
    for (auto& sums : centres) sums.resize(batch * features);
    for (auto& sums : along) sums.resize(batch * features);
    ForAll(pool, batch, [&](Index image) {
      const T* own = z + image * layer.output();
      for (Index n = 0; n < num_cotangents; ++n) {
        const T* g = cotangents[n] + image * layer.output();
        for (Index feature = 0; feature < features; feature += kLanes<T>) {
          Vector<T> sum = {}, product = {};
          for (Index at = feature; at < layer.output(); at += features) {
            const Vector<T> one = Load(g + at);
            sum += one;
            product += one * Load(own + at);
          }
          Store(centres[n].data() + image * features + feature, sum);
          Store(along[n].data() + image * features + feature, product);
        }
      }
    });
    for (auto& sums : centres) sums = Means(shape, features, sums);
    for (auto& sums : along) sums = Means(shape, features, sums);
  }

  std::vector<T> packed;
  if (has_input) packed = Packed(pool, kernel, layer, true);
  // Images of a group lie in a core's cache together.
  const Index at_once = std::clamp<Index>(
      (Index{1} << 16) / std::max(layer.image_planes(), layer.output_planes()), 1, 4);
  const Index num_groups = (batch + at_once - 1) / at_once;
  std::unique_ptr<T[]> partial(new T[has_gradient ? num_groups * layer.kernel() : 0]);
  const Index num_parameters = layer.kernel() + (has_bias ? features : 0);
  std::unique_ptr<T[]> of_examples(new T[num_kernels * batch * num_parameters]);
  ForAll(pool, num_groups, [&](Index group) {
    T* images = Scratch<T>(0, at_once * layer.image_planes());
    T* g_planes = Scratch<T>(1, at_once * layer.output_planes());
    const Index first = group * at_once, last = std::min(batch, first + at_once);
    if (has_gradient || num_kernels > 0)
      for (Index image = first; image < last; ++image) {
        const T* from = x + image * layer.image();
        Pack(shape, 1, layer.channels, images + (image - first) * layer.image_planes(),
             [&](Index at, Index) { return Hidden(layer.has_relu, from + at); });
      }
    for (Index n = 0; n < num_cotangents; ++n) {
      for (Index image = first; image < last; ++image) {
        const T *from = x + image * layer.image(), *own = z + image * layer.output();
        const T* g = cotangents[n] + image * layer.output();
        T* own_planes = g_planes + (image - first) * layer.output_planes();
        const bool has_kernel = n >= first_example && n < first_example + num_kernels;
        auto cotangent = [&](Index at, Index feature) {
          if (!layer.is_normalized) return Load(g + at);
          return Load(rate + feature) * (Load(g + at) - Load(centres[n].data() + feature) -
                                         Load(own + at) * Load(along[n].data() + feature));
        };
        Pack(shape, shape.stride, features, own_planes, cotangent);
        if (n == 0 && has_fisher)
          Sum(shape, features, fisher + image * features, [&](Index at, Index feature) {
            const Vector<T> y = layer.is_normalized
                                    ? Load(own + at) / Load(rate + feature) + Load(mean + feature)
                                    : Load(own + at);
            return y * cotangent(at, feature);
          });
        if (has_kernel) {
          T* to = of_examples.get() + ((n - first_example) * batch + image) * num_parameters;
          Gradient(layer, 1, images + (image - first) * layer.image_planes(), own_planes, to);
          if (has_bias) Sum(shape, features, to + layer.kernel(), cotangent);
        }
        if (!has_input) continue;
        T* to = inputs[n] + image * layer.image();
        const T* total = has_totals ? totals[n] + image * layer.image() : nullptr;
        Convolve(shape, 1, features, layer.channels, own_planes, packed.data(),
                 [&](Index at, Index, Vector<T> sum) {
                   sum = Gated(layer.has_relu, from + at, sum);
                   Store(to + at, total == nullptr ? sum : sum + Load(total + at));
                 });
      }
      if (n == 0 && has_gradient)
        Gradient(layer, last - first, images, g_planes, partial.get() + group * layer.kernel());
    }
  });
  for (Index n = 0; n < num_kernels; ++n)
    Products(pool, batch, num_parameters, of_examples.get() + n * batch * num_parameters,
             kernels_before + n * batch * batch, kernels + n * batch * batch);
  if (!has_gradient) return;
  const Index share = features * shape.size * shape.size;  // divides the kernel's size
  ForAll(pool, layer.channels, [&](Index part) {
    for (Index at = part * share; at < (part + 1) * share; at += kLanes<T>) {
      Vector<T> sum = {};
      for (Index group = 0; group < num_groups; ++group)
        sum += Load(partial.get() + group * layer.kernel() + at);
      Store(gradient + at, sum);
    }
  });
}

}  // namespace
