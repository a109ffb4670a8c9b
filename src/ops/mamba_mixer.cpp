#include "ops/mamba_mixer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <memory>
#include <optional>

#include "base/error.h"
#include "ops/causal_conv.h"
#include "ops/norm.h"

namespace braid {
namespace {

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
