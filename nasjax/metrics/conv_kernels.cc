// Convolution blocks for CPUs, forward and backward, with what training-free metrics read off them.
//
// What `conv_rule.py` has XLA compute in many passes over memory is done here image by image: ReLU,
// convolution, batch normalisation, gradients of the kernel for the batch and for every example,
// the input's cotangent, and their movement along the weights.
//
// Arrays are [batch, height, width, channels], kernels [size, size, channels, features]; channels
// and features are multiples of 16, strides 1 or 2, sizes 1 or 3. Results don't depend on the
// number of threads: what is summed over images is kept for every group of them and summed in
// order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "conv_images.h"
#include "convolutions.h"
#include "cpu_vectors.h"
#include "example_products.h"
#include "pooling.h"
#include "xla/ffi/api/ffi.h"

namespace {

template <typename T>
class Arguments {
 public:
  Arguments(ffi::RemainingArgs args, ffi::RemainingRets rets) : args_(args), rets_(rets) {}
  const T* Next() { return args_.get<ffi::AnyBuffer>(arg_++)->template typed_data<T>(); }
  T* NextResult() { return (*rets_.get<ffi::AnyBuffer>(ret_++))->template typed_data<T>(); }

 private:
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
  size_t arg_ = 0, ret_ = 0;
};

// What every handler is told of a block.
struct Block {
  ffi::AnyBuffer x, kernel;
  bool has_relu, is_normalized;
  int64_t stride;

  Layer layer() const {
    auto image = x.dimensions(), weights = kernel.dimensions();
    return {{image[0], image[1], image[2], weights[0], stride},
            weights[2],
            weights[3],
            has_relu,
            is_normalized};
  }
};

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
         [&](Index at, Index) { return Gated(layer.has_relu, from + at, Load(from + at)); });
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
  const Index at_once =
      std::clamp<Index>((Index{1} << 17) / (Prepared<T>::Size(shape, layer.channels) +
                                            Prepared<T>::Size(shape, features)),
                        1, 4);
  const Index num_groups = (batch + at_once - 1) / at_once;
  std::unique_ptr<T[]> partial(new T[has_gradient ? num_groups * layer.kernel() : 0]);
  const Index num_parameters = layer.kernel() + (has_bias ? features : 0);
  std::unique_ptr<T[]> of_examples(new T[num_kernels * batch * num_parameters]);
  ForAll(pool, num_groups, [&](Index group) {
    const Prepared<T> images(shape, layer.channels, at_once, 0);
    const Prepared<T> prepared(shape, features, at_once, 2);
    const Index first = group * at_once, last = std::min(batch, first + at_once);
    if (has_gradient || num_kernels > 0)
      for (Index image = first; image < last; ++image) {
        const T* from = x + image * layer.image();
        Pack(shape, 1, layer.channels, images.planes(image - first),
             [&](Index at, Index) { return Gated(layer.has_relu, from + at, Load(from + at)); });
        images.TransformInputs(image - first);
      }
    for (Index n = 0; n < num_cotangents; ++n) {
      for (Index image = first; image < last; ++image) {
        const T *from = x + image * layer.image(), *own = z + image * layer.output();
        const T* g = cotangents[n] + image * layer.output();
        const bool has_kernel = n >= first_example && n < first_example + num_kernels;
        auto cotangent = [&](Index at, Index feature) {
          if (!layer.is_normalized) return Load(g + at);
          return Load(rate + feature) * (Load(g + at) - Load(centres[n].data() + feature) -
                                         Load(own + at) * Load(along[n].data() + feature));
        };
        Pack(shape, shape.stride, features, prepared.planes(image - first), cotangent);
        if (has_kernel || (n == 0 && has_gradient)) prepared.TransformCotangents(image - first);
        if (n == 0 && has_fisher)
          Sum(shape, features, fisher + image * features, [&](Index at, Index feature) {
            const Vector<T> y = layer.is_normalized
                                    ? Load(own + at) / Load(rate + feature) + Load(mean + feature)
                                    : Load(own + at);
            return y * cotangent(at, feature);
          });
        if (has_kernel) {
          T* to = of_examples.get() + ((n - first_example) * batch + image) * num_parameters;
          images.Gradient(prepared, image - first, 1, to);
          if (has_bias) Sum(shape, features, to + layer.kernel(), cotangent);
        }
        if (!has_input) continue;
        T* to = inputs[n] + image * layer.image();
        const T* total = has_totals ? totals[n] + image * layer.image() : nullptr;
        Convolve(shape, 1, features, layer.channels, prepared.planes(image - first), packed.data(),
                 [&](Index at, Index, Vector<T> sum) {
                   sum = Gated(layer.has_relu, from + at, sum);
                   Store(to + at, total == nullptr ? sum : sum + Load(total + at));
                 });
      }
      if (n == 0 && has_gradient)
        images.Gradient(prepared, 0, last - first, partial.get() + group * layer.kernel());
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
         [&](Index at, Index) { return Gated(layer.has_relu, gate + at, Load(gate + at)); });
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

template <typename Run>
ffi::Error OfType(ffi::AnyBuffer x, Run run) {
  if (x.element_type() == ffi::F32)
    run(float{});
  else if (x.element_type() == ffi::F64)
    run(double{});
  else
    return ffi::Error::InvalidArgument("nasjax: arrays must be float32 or float64");
  return ffi::Error::Success();
}

ffi::Error ForwardHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                          ffi::RemainingArgs args, ffi::RemainingRets rets, bool has_relu,
                          bool is_normalized, int64_t stride, double epsilon, bool has_total) {
  const Block block{x, kernel, has_relu, is_normalized, stride};
  return OfType(x, [&](auto zero) {
    using T = decltype(zero);
    Forward<T>(pool, block.layer(), epsilon, x.typed_data<T>(), kernel.typed_data<T>(), has_total,
               {args, rets});
  });
}

ffi::Error BackHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                       ffi::RemainingArgs args, ffi::RemainingRets rets, bool has_relu,
                       bool is_normalized, int64_t stride, bool has_gradient, bool has_fisher,
                       int64_t num_cotangents, int64_t first_example, int64_t num_kernels,
                       bool has_bias, bool has_input, bool has_totals) {
  const Block block{x, kernel, has_relu, is_normalized, stride};
  return OfType(x, [&](auto zero) {
    using T = decltype(zero);
    Back<T>(pool, block.layer(), x.typed_data<T>(), kernel.typed_data<T>(), has_gradient,
            has_fisher, num_cotangents, first_example, num_kernels, has_bias, has_input, has_totals,
            {args, rets});
  });
}

ffi::Error TangentHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                          ffi::RemainingArgs args, ffi::RemainingRets rets, bool has_relu,
                          bool is_normalized, int64_t stride, double epsilon, bool has_total) {
  const Block block{x, kernel, has_relu, is_normalized, stride};
  return OfType(x, [&](auto zero) {
    using T = decltype(zero);
    Tangent<T>(pool, block.layer(), epsilon, x.typed_data<T>(), kernel.typed_data<T>(), has_total,
               {args, rets});
  });
}

ffi::Error TangentBackHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                              ffi::RemainingArgs args, ffi::RemainingRets rets, bool has_relu,
                              bool is_normalized, int64_t stride, bool has_tangent, bool has_input,
                              bool has_total) {
  const Block block{x, kernel, has_relu, is_normalized, stride};
  return OfType(x, [&](auto zero) {
    using T = decltype(zero);
    TangentBack<T>(pool, block.layer(), x.typed_data<T>(), kernel.typed_data<T>(), has_tangent,
                   has_input, has_total, {args, rets});
  });
}

ffi::Error AgreementHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer total,
                            ffi::Result<ffi::AnyBuffer> sum, double weight) {
  return OfType(x, [&](auto zero) {
    using T = decltype(zero);
    const Index batch = x.dimensions()[0];
    Agreement<T>(pool, batch, x.element_count() / batch, weight, x.typed_data<T>(),
                 total.typed_data<T>(), sum->template typed_data<T>());
  });
}

// Pools of several arrays of one shape. Arguments: those but the first, then totals for all or
// nothing. Results: one of each.
ffi::Error PoolHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs args,
                       ffi::RemainingRets rets, bool is_transposed, bool has_totals) {
  return OfType(x, [&](auto zero) {
    using T = decltype(zero);
    const auto sizes = x.dimensions();
    const Index image = sizes[1] * sizes[2] * sizes[3], count = rets.size();
    Arguments<T> more(args, rets);
    std::vector<const T*> images{x.typed_data<T>()}, totals;
    std::vector<T*> results;
    for (Index n = 1; n < count; ++n) images.push_back(more.Next());
    for (Index n = 0; has_totals && n < count; ++n) totals.push_back(more.Next());
    for (Index n = 0; n < count; ++n) results.push_back(more.NextResult());
    ForAll(pool, count * sizes[0], [&](Index index) {
      const Index n = index / sizes[0], at = index % sizes[0] * image;
      Pool(sizes[1], sizes[2], sizes[3], is_transposed, images[n] + at,
           has_totals ? totals[n] + at : nullptr, results[n] + at);
    });
  });
}

auto Bound() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<bool>("has_relu")
      .Attr<bool>("is_normalized")
      .Attr<int64_t>("stride");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(NasjaxForward, ForwardHandler,
                              Bound().Attr<double>("epsilon").Attr<bool>("has_total"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(NasjaxBack, BackHandler,
                              Bound()
                                  .Attr<bool>("has_gradient")
                                  .Attr<bool>("has_fisher")
                                  .Attr<int64_t>("num_cotangents")
                                  .Attr<int64_t>("first_example")
                                  .Attr<int64_t>("num_kernels")
                                  .Attr<bool>("has_bias")
                                  .Attr<bool>("has_input")
                                  .Attr<bool>("has_totals"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(NasjaxTangent, TangentHandler,
                              Bound().Attr<double>("epsilon").Attr<bool>("has_total"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    NasjaxTangentBack, TangentBackHandler,
    Bound().Attr<bool>("has_tangent").Attr<bool>("has_input").Attr<bool>("has_total"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(NasjaxPool, PoolHandler,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("is_transposed")
                                  .Attr<bool>("has_totals"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(NasjaxAgreement, AgreementHandler,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<double>("weight"));
