#include "ops/causal_conv.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "tensor/autograd.h"

namespace braid {
namespace {

struct Convolution {
  const at::Tensor &x, &weight, &bias;
  const PackedSequences& sequences;

  std::int64_t taps() const { return weight.size(1); }
  // No token reaches back further than this, so larger shifts are not needed.
  std::int64_t reach() const { return std::min(taps(), std::max<std::int64_t>(sequences.max_length, 1)); }
  // The weights of the inputs `back` tokens earlier.   [C]
  at::Tensor weight_at(std::int64_t back) const { return widen(weight.select(1, taps() - 1 - back)); }

  // Rows from `back` on, zero where the row `back` earlier belongs to another sequence. Filled, not multiplied:
  // infinities in one sequence must not reach its neighbour.
  at::Tensor rows_looking_back(const at::Tensor& rows, std::int64_t back) const {
    if (back == 0) return rows;
    const at::Tensor before_start = sequences.position_of.slice(0, back) < back;
    return rows.masked_fill(before_start.unsqueeze(1), 0);
  }
  at::Tensor rows_seen(const at::Tensor& wide, std::int64_t back) const {
    return rows_looking_back(wide.slice(0, 0, wide.size(0) - back), back);
  }

  at::Tensor before_silu() const {
    const at::Tensor wide = widen(x);
    at::Tensor sum = wide * weight_at(0);
    if (bias.defined()) sum += widen(bias);
    for (std::int64_t back = 1; back < reach(); ++back)
      sum.slice(0, back).addcmul_(rows_seen(wide, back), weight_at(back));
    return sum;
  }
};

// Parameters may have another dtype than activations.
[[maybe_unused]] bool has_kernels(std::initializer_list<at::Tensor> activations, const at::Tensor& weight,
                                  const at::Tensor& bias) {
  return has_kernel(activations) && has_kernel({weight}) && has_kernel({bias});
}

}  // namespace

at::Tensor causal_conv_silu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const PackedSequences& sequences) {
  if constexpr (kHasKernels)
    if (has_kernels({x}, weight, bias) && cuda::has_causal_conv(weight.size(1)))
      return cuda::causal_conv_silu_forward(x, weight, bias, sequences);
  return at::silu(Convolution{x, weight, bias, sequences}.before_silu()).to(x.scalar_type());
}

Tensors causal_conv_silu_backward_into(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, const PackedSequences& sequences,
                                       const at::Tensor& x_grad) {
  if constexpr (kHasKernels)
    if (has_kernels({grad, x, x_grad}, weight, bias) && cuda::has_causal_conv(weight.size(1)))
      return cuda::causal_conv_silu_backward_into(grad, x, weight, bias, sequences, x_grad);
  const Convolution conv{x, weight, bias, sequences};
  const at::Tensor wide = widen(x), grad_sum = at::silu_backward(widen(grad), conv.before_silu());
  at::Tensor grad_x = at::zeros_like(wide, at::MemoryFormat::Contiguous);
  at::Tensor grad_weight = at::zeros({weight.size(0), conv.taps()}, wide.options());
  for (std::int64_t back = 0; back < conv.reach(); ++back) {
    const at::Tensor arriving = conv.rows_looking_back(grad_sum.slice(0, back), back);
    grad_x.slice(0, 0, grad_x.size(0) - back).addcmul_(arriving, conv.weight_at(back));
    grad_weight.select(1, conv.taps() - 1 - back).copy_((arriving * conv.rows_seen(wide, back)).sum(0));
  }
  x_grad.copy_(grad_x);
  return {grad_weight.to(weight.scalar_type()), bias.defined() ? grad_sum.sum(0).to(bias.scalar_type()) : at::Tensor()};
}

at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const PackedSequences& sequences) {
  BRAID_CHECK_EQ(x.size(0), sequences.tokens(), "number of tokens in causal_conv_silu");
  BRAID_CHECK_EQ(x.size(1), weight.size(0), "number of channels in causal_conv_silu");
  return differentiable(
      "CausalConvSiluBackward", {x, weight, bias}, [&] { return causal_conv_silu_forward(x, weight, bias, sequences); },
      [x, weight, bias, sequences](const at::Tensor& grad) {
        const at::Tensor x_grad = at::empty(x.sizes(), x.options());
        const Tensors of_filter = causal_conv_silu_backward_into(grad, x, weight, bias, sequences, x_grad);
        return Tensors{x_grad, of_filter[0], of_filter[1]};
      });
}

}  // namespace braid
