#include "ops/causal_conv.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "tensor/autograd.h"
#include "ops/widen.h"

namespace braid {
namespace {

struct Convolution {
  at::Tensor x, weight, bias;
  PackedSequences sequences;

  std::int64_t taps() const { return weight.size(1); }
  // No token looks back further than this, so nothing needs shifting by more.
  std::int64_t reach() const { return std::min(taps(), std::max<std::int64_t>(sequences.max_length, 1)); }
  // The weights with which tokens look `back` tokens back.   [C]
  at::Tensor weight_at(std::int64_t back) const { return widen(weight.select(1, taps() - 1 - back)); }

  // Rows from `back` on, zero where the row `back` before is of another sequence. Filled, not multiplied: a sequence
  // that holds infinities must not reach its neighbour.
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

  std::vector<at::Tensor> backward(const at::Tensor& output_grad) const {
    const at::Tensor wide = widen(x), grad = at::silu_backward(widen(output_grad), before_silu());
    at::Tensor grad_x = at::zeros_like(wide, at::MemoryFormat::Contiguous);
    at::Tensor grad_weight = at::zeros({weight.size(0), taps()}, wide.options());
    for (std::int64_t back = 0; back < reach(); ++back) {
      const at::Tensor arriving = rows_looking_back(grad.slice(0, back), back);
      grad_x.slice(0, 0, grad_x.size(0) - back).addcmul_(arriving, weight_at(back));
      grad_weight.select(1, taps() - 1 - back).copy_((arriving * rows_seen(wide, back)).sum(0));
    }
    return {grad_x.to(x.scalar_type()), grad_weight.to(weight.scalar_type()),
            bias.defined() ? grad.sum(0).to(bias.scalar_type()) : at::Tensor()};
  }
};

}  // namespace

at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const PackedSequences& sequences) {
  BRAID_CHECK_EQ(x.size(0), sequences.tokens(), "tokens of causal_conv_silu");
  BRAID_CHECK_EQ(x.size(1), weight.size(0), "channels of causal_conv_silu");
  const Convolution convolution{x, weight, bias, sequences};
  at::Tensor out;
  {
    at::NoGradGuard guard;
    out = at::silu(convolution.before_silu()).to(x.scalar_type());
  }
  if (!needs_gradient({x, weight, bias})) return out;
  return attach_backward(
      "CausalConvSiluBackward", {x, weight, bias}, {out},
      [convolution](const std::vector<at::Tensor>& grads) { return convolution.backward(grads[0]); })[0];
}

}  // namespace braid
