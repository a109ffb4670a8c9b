#include "ops/mamba.h"
#include <ATen/ATen.h>
#include "base/error.h"
#include "kernels/mamba.h"
#include "ops/has_kernel.h"
#include "ops/norm.h"

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
bool has_conv_kernel(std::initializer_list<at::Tensor> activations, const at::Tensor& weight, const at::Tensor& bias) {
  return has_kernel(activations) && has_kernel({weight}) && has_kernel({bias}) &&
         kernels::has_causal_conv(weight.size(1));
}

Tensors in_order(const MambaParameters& all) {
  return {all.conv_weight, all.conv_bias, all.A_log, all.D, all.dt_bias, all.norm_weight};
}

struct FeatureColumns {
  at::Tensor z, xbc, dt;  // [T, d], [T, d + 2 g n], [T, h]
};

FeatureColumns split_features(const at::Tensor& features, const MambaParameters& parameters) {
  const std::vector<at::Tensor> parts = features.split_with_sizes(
      {parameters.norm_weight.numel(), parameters.conv_weight.size(0), parameters.A_log.numel()}, 1);
  return {parts[0], parts[1], parts[2]};
}

// The scan's inputs, or their gradients, as columns of the convolution's output and of the features.
SsdInputs scan_inputs(const at::Tensor& xbc, const at::Tensor& dt, const MambaParameters& parameters,
                      std::int64_t groups) {
  const std::int64_t inner = parameters.norm_weight.numel(), states = (xbc.size(1) - inner) / 2;
  const std::vector<at::Tensor> x_b_c = xbc.split_with_sizes({inner, states, states}, 1);
  return {.x = x_b_c[0].unflatten(1, {dt.size(1), -1}),
          .dt = dt,
          .A_log = parameters.A_log,
          .B = x_b_c[1].unflatten(1, {groups, -1}),
          .C = x_b_c[2].unflatten(1, {groups, -1}),
          .D = parameters.D,
          .dt_bias = parameters.dt_bias};
}

struct Saved {
  at::Tensor convolved;  // [T, d + 2 g n]
  at::Tensor y;          // of the scan
  SsdSaved scan;
  at::Tensor inverse_root;  // of the norm
};

OutputAndSaved<Saved> mixer_forward(const at::Tensor& features, const MambaParameters& parameters,
                                    const MambaOptions& options, const PackedSequences& sequences) {
  const FeatureColumns columns = split_features(features, parameters);
  const at::Tensor convolved =
      causal_conv_silu_forward(columns.xbc, parameters.conv_weight, parameters.conv_bias, sequences);
  const auto [y, scan] =
      ssd_scan_forward(scan_inputs(convolved, columns.dt, parameters, options.groups), options.scan, sequences);
  const auto [normed, inverse_root] =
      gated_rms_norm_forward(y.flatten(1, 2), columns.z, parameters.norm_weight, options.groups, options.norm_eps);
  return {normed, {convolved, y, scan, inverse_root}};
}

// The gradients of the features and of the parameters in their order.
Tensors mixer_backward(const at::Tensor& grad, const at::Tensor& features, const MambaParameters& parameters,
                       const MambaOptions& options, const PackedSequences& sequences, const Saved& saved) {
  const at::Tensor features_grad = at::empty(features.sizes(), features.options());
  const FeatureColumns columns = split_features(features, parameters),
                       grads = split_features(features_grad, parameters);
  MambaParameters parameter_grads = {.A_log = at::empty_like(parameters.A_log),
                                     .D = at::empty_like(parameters.D),
                                     .dt_bias = at::empty_like(parameters.dt_bias),
                                     .norm_weight = at::empty_like(parameters.norm_weight)};

  const at::Tensor y = saved.y.flatten(1, 2), y_grad = at::empty_like(y);
  const at::Tensor convolved_grad = at::empty_like(saved.convolved);
  parameter_grads.norm_weight =
      gated_rms_norm_backward_into(grad, y, columns.z, parameters.norm_weight, saved.inverse_root, y_grad, grads.z);
  ssd_scan_backward_into(y_grad.view(saved.y.sizes()),
                         scan_inputs(saved.convolved, columns.dt, parameters, options.groups), saved.scan, options.scan,
                         sequences, scan_inputs(convolved_grad, grads.dt, parameter_grads, options.groups));
  const Tensors filter_grads = causal_conv_silu_backward_into(convolved_grad, columns.xbc, parameters.conv_weight,
                                                              parameters.conv_bias, sequences, grads.xbc);
  parameter_grads.conv_weight = filter_grads[0];
  parameter_grads.conv_bias = filter_grads[1];
  Tensors all = in_order(parameter_grads);
  all.insert(all.begin(), features_grad);
  return all;
}

// A call of the mixer. What its forward saved is kept, or made by a second forward in backward: by the first user of
// the output or of what is saved that needs it, for both.
class MixerCall {
 public:
  MixerCall(const at::Tensor& features, const MambaParameters& parameters, const MambaOptions& options,
            const PackedSequences& sequences)
      : features_(features), parameters_(parameters), options_(options), sequences_(sequences) {}

  at::Tensor forward() {
    OutputAndSaved<Saved> result = mixer_forward(features_, parameters_, options_, sequences_);
    saved_ = std::move(result.saved);
    return result.output;
  }
  void forget() { saved_.reset(); }

  at::Tensor output_again() {
    if (!saved_) return forward();
    return gated_rms_norm_forward(saved_->y.flatten(1, 2), split_features(features_, parameters_).z,
                                  parameters_.norm_weight, options_.groups, options_.norm_eps)
        .output;
  }
  Tensors backward(const at::Tensor& grad) {
    if (!saved_) forward();
    return mixer_backward(grad, features_, parameters_, options_, sequences_, *saved_);
  }

 private:
  const at::Tensor features_;
  const MambaParameters parameters_;
  const MambaOptions options_;
  const PackedSequences sequences_;
  std::optional<Saved> saved_;
};

}  // namespace

at::Tensor causal_conv_silu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const PackedSequences& sequences) {
  if (has_conv_kernel({x}, weight, bias))
    return fill<kernels::causal_conv_silu_forward>(x.new_empty(x.sizes()), with_dense_rows(x), weight.contiguous(),
                                                   dense(bias), sequences.position_of);
  return at::silu(Convolution{x, weight, bias, sequences}.before_silu()).to(x.scalar_type());
}

Tensors causal_conv_silu_backward_into(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, const PackedSequences& sequences,
                                       const at::Tensor& x_grad) {
  if (has_conv_kernel({grad, x, x_grad}, weight, bias)) {
    const at::Tensor of_weight = weight.new_empty(weight.sizes());
    const at::Tensor of_bias = bias.defined() ? bias.new_empty(bias.sizes()) : bias;
    call<kernels::causal_conv_silu_backward>(with_dense_rows(grad), with_dense_rows(x), weight.contiguous(),
                                             dense(bias), sequences.position_of, x_grad, of_weight, of_bias);
    return {of_weight, of_bias};
  }
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

Recomputable mamba_mixer(const at::Tensor& features, const MambaParameters& parameters, const MambaOptions& options,
                         const PackedSequences& sequences, MixerRecompute recompute) {
  const std::int64_t inner = parameters.norm_weight.numel(), heads = parameters.A_log.numel();
  const std::int64_t conv = parameters.conv_weight.size(0);
  BRAID_CHECK_EQ(features.size(0), sequences.tokens(), "number of tokens in mamba_mixer");
  BRAID_CHECK_EQ(features.size(1), inner + conv + heads, "number of features in mamba_mixer");
  BRAID_CHECK(heads % options.groups == 0 && inner % heads == 0 && (conv - inner) % (2 * options.groups) == 0,
              "mamba_mixer: {} channels, {} of them in the scan, do not divide into {} heads and {} groups", conv,
              inner, heads, options.groups);
  Tensors inputs = in_order(parameters);
  inputs.insert(inputs.begin(), features);
  const auto call = std::make_shared<MixerCall>(features, parameters, options, sequences);
  const at::Tensor output = differentiable(
      "MambaMixerBackward", inputs, [&] { return call->forward(); },
      [call](const at::Tensor& grad) { return call->backward(grad); });
  if (recompute == MixerRecompute::All) call->forget();
  if (recompute == MixerRecompute::None) return output;
  return {output, [call] { return call->output_again(); }};
}

}  // namespace braid
