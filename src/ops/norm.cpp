#include "ops/norm.h"
#include <ATen/ATen.h>
#include "base/error.h"
#include "kernels/mamba.h"
#include "kernels/rows.h"
#include "ops/has_kernel.h"
#include "ops/linear.h"

namespace braid {
namespace {

at::Tensor inverse_root_mean_square(const at::Tensor& x, double eps) {
  return x.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

// The gradient of x * inverse_root_mean_square(x), from the values of the forward.
at::Tensor grad_of_normalized(const at::Tensor& grad, const at::Tensor& normalized, const at::Tensor& inverse_root) {
  const at::Tensor along = (grad * normalized).mean(-1, /*keepdim=*/true);
  return at::addcmul(grad, normalized, along, /*value=*/-1).mul_(inverse_root);
}

at::Tensor sum_over_tokens(const at::Tensor& x, const at::Tensor& like) {
  return x.flatten(0, -2).sum(0).to(like.scalar_type());
}

at::Tensor gated(const at::Tensor& y, const at::Tensor& z, std::int64_t groups) {
  return (widen(y) * at::silu(widen(z))).unflatten(-1, {groups, -1});
}

void check_width(const at::Tensor& parameter, const at::Tensor& x, const char* what) {
  BRAID_CHECK_EQ(parameter.numel(), x.size(-1), "size of the {}", what);
}

bool takes_norm_of(const at::Tensor& x) { return x.dim() == 2 && x.size(1) <= kernels::kWidestNorm; }

bool takes_gated_norm_of(const at::Tensor& y, std::int64_t groups) {
  return y.dim() == 2 && kernels::has_gated_rms_norm(y.size(1) / groups);
}

// norm_backward() of the normalised values alone.
Tensors normed_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const NormStatistics& saved) {
  const at::Tensor wide_grad = widen(grad), centered = bias.defined() ? widen(x) - saved.mean : widen(x);
  const at::Tensor normalized = centered * saved.inverse_root;
  at::Tensor x_grad = grad_of_normalized(wide_grad * widen(weight), normalized, saved.inverse_root);
  if (bias.defined()) x_grad = x_grad - x_grad.mean(-1, /*keepdim=*/true);
  Tensors grads = {x_grad.to(x.scalar_type()), sum_over_tokens(wide_grad * normalized, weight)};
  if (bias.defined()) grads.push_back(sum_over_tokens(wide_grad, bias));
  return grads;
}

at::Tensor norm(const char* name, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const auto forward = [&]() -> OutputAndSaved<NormStatistics> {
    const Normed result = norm_forward(x, {}, weight, bias, eps);
    return {result.normed, result.saved};
  };
  return differentiable(name, {x, weight, bias}, forward,
                        [x, weight, bias](const at::Tensor& grad, const NormStatistics& saved) {
                          Tensors grads = norm_backward({}, grad, x, weight, bias, saved);
                          grads.resize(3);
                          return grads;
                        });
}

SumAndNormed add_norm(const char* name, const at::Tensor& x, const Branch& branch, const at::Tensor& weight,
                      const at::Tensor& bias, double eps) {
  BRAID_CHECK(x.sizes() == branch.output.sizes() && x.scalar_type() == branch.output.scalar_type(),
              "a stream and its branch have one shape and dtype");
  check_width(weight, x, "weight of a norm");
  const auto [sum, normed, saved] = [&] {
    at::NoGradGuard guard;
    return norm_forward(x, branch, weight, bias, eps);
  }();
  const Tensors inputs = {x, branch.output, weight, bias, branch.bias};
  if (!needs_gradient(inputs)) return {sum, normed};
  const bool branch_bias = branch.bias.defined() && branch.bias.requires_grad();
  const Tensors outputs =
      attach_backward(name, inputs, {sum.detach(), normed}, [=, sum = sum, saved = saved](const Tensors& grads) {
        Tensors result = norm_backward(grads[0], grads[1], sum, weight, bias, saved, branch_bias);
        result.insert(result.begin(), result[0]);
        result.resize(5);
        return result;
      });
  return {outputs[0], outputs[1]};
}

}  // namespace

Normed norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps) {
  if (has_kernel({x, branch.output, branch.bias, weight, bias}) && takes_norm_of(x)) {
    const bool has_branch = branch.output.defined();
    const at::Tensor sum = has_branch ? x.new_empty(x.sizes()) : at::Tensor(), normed = x.new_empty(x.sizes());
    const at::Tensor inverse_root = x.new_empty({x.size(0), 1}, at::kFloat);
    const at::Tensor mean = bias.defined() ? inverse_root.new_empty(inverse_root.sizes()) : at::Tensor();
    call<kernels::norm_forward>(with_dense_rows(x), with_dense_rows(branch.output), dense(branch.bias),
                                weight.contiguous(), dense(bias), eps, sum, normed, mean, inverse_root);
    return {has_branch ? sum : x, normed, {mean, inverse_root}};
  }
  const at::Tensor sum = branch.output.defined() ? x + branch.value() : x, wide = widen(sum);
  if (!bias.defined()) {
    const at::Tensor inverse_root = inverse_root_mean_square(wide, eps);
    return {sum, (wide * inverse_root).mul_(widen(weight)).to(x.scalar_type()), {{}, inverse_root}};
  }
  const at::Tensor mean = wide.mean(-1, /*keepdim=*/true), centered = wide - mean;
  const at::Tensor inverse_root = inverse_root_mean_square(centered, eps);
  const at::Tensor out = at::addcmul(widen(bias), centered * inverse_root, widen(weight)).to(x.scalar_type());
  return {sum, out, {mean, inverse_root}};
}

Tensors norm_backward(const at::Tensor& sum_grad, const at::Tensor& normed_grad, const at::Tensor& sum,
                      const at::Tensor& weight, const at::Tensor& bias, const NormStatistics& saved, bool branch_bias) {
  if (has_kernel({sum_grad, normed_grad, sum, weight, bias}) && takes_norm_of(sum)) {
    BRAID_CHECK(bias.defined() || !branch_bias, "an RMS norm does not sum its input's gradient");
    const std::int64_t parameters = !bias.defined() ? 1 : branch_bias ? 3 : 2;
    const at::Tensor s_grad = sum.new_empty(sum.sizes()), of_parameters = sum.new_empty({parameters, sum.size(1)});
    call<kernels::norm_backward>(with_dense_rows(normed_grad), with_dense_rows(sum_grad), with_dense_rows(sum),
                                 weight.contiguous(), saved.mean, saved.inverse_root, s_grad, of_parameters);
    Tensors grads = of_parameters.unbind(0);
    grads.insert(grads.begin(), s_grad);
    return grads;
  }
  Tensors grads = normed_backward(normed_grad, sum, weight, bias, saved);
  if (sum_grad.defined()) grads[0] = sum_grad + grads[0];
  if (branch_bias) grads.push_back(column_sum(grads[0]));
  return grads;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_width(weight, x, "weight of rms_norm");
  return norm("RmsNormBackward", x, weight, {}, eps);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  check_width(weight, x, "weight of layer_norm");
  check_width(bias, x, "bias of layer_norm");
  return norm("LayerNormBackward", x, weight, bias, eps);
}

SumAndNormed add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps) {
  return add_norm("AddRmsNormBackward", x, branch, weight, {}, eps);
}

SumAndNormed add_layer_norm(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                            double eps) {
  check_width(bias, x, "bias of a norm");
  BRAID_CHECK(!branch.bias.defined() || branch.bias.numel() == x.size(-1), "a branch of {} columns has a bias of {}",
              x.size(-1), branch.bias.numel());
  return add_norm("AddLayerNormBackward", x, branch, weight, bias, eps);
}

OutputAndSaved<at::Tensor> gated_rms_norm_forward(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                                                  std::int64_t groups, double eps) {
  if (has_kernel({y, z}) && has_kernel({weight}) && takes_gated_norm_of(y, groups)) {
    const at::Tensor out = y.new_empty(y.sizes()), inverse_root = y.new_empty({y.size(0), groups, 1}, at::kFloat);
    call<kernels::gated_rms_norm_forward>(with_dense_rows(y), with_dense_rows(z), weight.contiguous(), groups, eps, out,
                                          inverse_root);
    return {out, inverse_root};
  }
  const at::Tensor g = gated(y, z, groups), inverse_root = inverse_root_mean_square(g, eps);
  return {(g * inverse_root).flatten(-2).mul_(widen(weight)).to(y.scalar_type()), inverse_root};
}

at::Tensor gated_rms_norm_backward_into(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                        const at::Tensor& weight, const at::Tensor& inverse_root,
                                        const at::Tensor& y_grad, const at::Tensor& z_grad) {
  const std::int64_t groups = inverse_root.size(-2);
  if (has_kernel({grad, y, z, y_grad, z_grad}) && has_kernel({weight}) && takes_gated_norm_of(y, groups)) {
    const at::Tensor weight_grad = weight.new_empty(weight.sizes());
    call<kernels::gated_rms_norm_backward>(with_dense_rows(grad), with_dense_rows(y), with_dense_rows(z),
                                           weight.contiguous(), groups, inverse_root, y_grad, z_grad, weight_grad);
    return weight_grad;
  }
  const at::Tensor wide_grad = widen(grad), normalized = gated(y, z, groups).mul_(inverse_root);
  const at::Tensor grad_normalized = (wide_grad * widen(weight)).unflatten(-1, {groups, -1});
  const at::Tensor grad_g = grad_of_normalized(grad_normalized, normalized, inverse_root).flatten(-2);
  y_grad.copy_(grad_g * at::silu(widen(z)));
  z_grad.copy_(at::silu_backward(grad_g * widen(y), widen(z)));
  return sum_over_tokens(wide_grad * normalized.flatten(-2), weight);
}

at::Tensor gated_rms_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight, std::int64_t groups,
                          double eps) {
  check_width(weight, y, "weight of gated_rms_norm");
  BRAID_CHECK_EQ(y.size(-1) % groups, 0, "{} channels in {} groups", y.size(-1), groups);
  return differentiable(
      "GatedRmsNormBackward", {y, z, weight}, [&] { return gated_rms_norm_forward(y, z, weight, groups, eps); },
      [y, z, weight](const at::Tensor& grad, const at::Tensor& inverse_root) {
        const at::Tensor y_grad = at::empty(y.sizes(), y.options()), z_grad = at::empty(z.sizes(), z.options());
        const at::Tensor weight_grad = gated_rms_norm_backward_into(grad, y, z, weight, inverse_root, y_grad, z_grad);
        return Tensors{y_grad, z_grad, weight_grad};
      });
}

}  // namespace braid
