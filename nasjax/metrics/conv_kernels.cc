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

#include <cstdint>
#include <vector>

#include "block_tangents.h"
#include "blocks.h"
#include "conv_images.h"
#include "cpu_vectors.h"
#include "example_products.h"
#include "pooling.h"
#include "xla/ffi/api/ffi.h"

namespace {

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
