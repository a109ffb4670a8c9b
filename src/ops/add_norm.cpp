#include "ops/add_norm.h"

#include "base/error.h"
#include "ops/column_sum.h"
#include "ops/has_kernel.h"
#include "ops/norm_cuda.h"

namespace braid {

SumNormedAndSaved add_norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight,
                                   const at::Tensor& bias, double eps) {
  if constexpr (kHasKernels)
    if (has_kernel({x, branch.output, branch.bias, weight, bias}) && cuda::takes_norm_of(x)) {
      const cuda::Normed result = cuda::norm_forward(x, branch, weight, bias, eps);
      return {result.sum, result.output, {result.mean, result.inverse_root}};
    }
  const at::Tensor sum = x + branch.value();
  if (bias.defined()) {
    const auto [normed, saved] = layer_norm_forward(sum, weight, bias, eps);
    return {sum, normed, saved};
  }
  const auto [normed, inverse_root] = rms_norm_forward(sum, weight, eps);
  return {sum, normed, {{}, inverse_root}};
}

Tensors add_norm_backward(const at::Tensor& sum_grad, const at::Tensor& normed_grad, const at::Tensor& sum,
                          const at::Tensor& weight, const at::Tensor& bias, const LayerNormStatistics& saved,
                          bool branch_bias) {
  if constexpr (kHasKernels)
    if (has_kernel({sum_grad, normed_grad, sum, weight, bias}) && cuda::takes_norm_of(sum))
      return cuda::norm_backward(normed_grad, sum_grad, sum, weight, {saved.mean, saved.inverse_root}, branch_bias);
  Tensors grads = bias.defined() ? layer_norm_backward(normed_grad, sum, weight, bias, saved)
                                 : rms_norm_backward(normed_grad, sum, weight, saved.inverse_root);
  grads[0] = sum_grad + grads[0];
  if (branch_bias) grads.push_back(column_sum(grads[0]));
  return grads;
}

namespace {

SumAndNormed add_norm(const char* name, const at::Tensor& x, const Branch& branch, const at::Tensor& weight,
                      const at::Tensor& bias, double eps) {
  BRAID_CHECK(x.sizes() == branch.output.sizes() && x.scalar_type() == branch.output.scalar_type(),
              "a stream and its branch have one shape and dtype");
  BRAID_CHECK_EQ(weight.numel(), x.size(-1), "size of the weight of a norm");
  const auto [sum, normed, saved] = [&] {
    at::NoGradGuard guard;
    return add_norm_forward(x, branch, weight, bias, eps);
  }();
  const Tensors inputs = {x, branch.output, weight, bias, branch.bias};
  if (!needs_gradient(inputs)) return {sum, normed};
  const bool branch_bias = branch.bias.defined() && branch.bias.requires_grad();
  const Tensors outputs =
      attach_backward(name, inputs, {sum.detach(), normed}, [=, sum = sum, saved = saved](const Tensors& grads) {
        Tensors result = add_norm_backward(grads[0], grads[1], sum, weight, bias, saved, branch_bias);
        result.insert(result.begin(), result[0]);
        result.resize(5);
        return result;
      });
  return {outputs[0], outputs[1]};
}

}  // namespace

SumAndNormed add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps) {
  return add_norm("AddRmsNormBackward", x, branch, weight, {}, eps);
}

SumAndNormed add_layer_norm(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                            double eps) {
  BRAID_CHECK_EQ(bias.numel(), x.size(-1), "size of the bias of a norm");
  BRAID_CHECK(!branch.bias.defined() || branch.bias.numel() == x.size(-1), "a branch of {} columns has a bias of {}",
              x.size(-1), branch.bias.numel());
  return add_norm("AddLayerNormBackward", x, branch, weight, bias, eps);
}

}  // namespace braid
