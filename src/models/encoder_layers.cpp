#include "models/encoder_layers.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "models/config_parts.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "nn/self_attention.h"
#include "ops/activation.h"
#include "ops/norm.h"

namespace braid {
namespace {

Activation gelu_named(const std::string& name) {
  return name == "quick" ? Activation::QuickGelu : name == "tanh" ? Activation::GeluTanh : Activation::GeluErf;
}

}  // namespace

// Pre-norm attention and MLP, all with biases, and an optional layer scale on each branch.
class EncoderLayers::TransformerLayer {
 public:
  TransformerLayer(const EncoderLayersConfig& config, const Parameters& parameters, const std::string& prefix,
                   const Parallel& parallel, const RecomputeConfig& recompute)
      : attention_{config.heads, config.heads, config.hidden / config.heads},
        norm_eps_(config.norm_eps),
        recompute_(recompute),
        gelu_(gelu_named(config.gelu)),
        parallel_(parallel),
        qkv_(parameters, prefix + "self_attention.linear_qkv.", parallel),
        proj_(parameters, prefix + "self_attention.linear_proj.", Split::Rows, parallel),
        attention_scale_(parameters.get_if_declared(prefix + "self_attention.layer_scale")),
        fc1_(parameters, prefix + "mlp.linear_fc1.", parallel),
        fc2_(parameters, prefix + "mlp.linear_fc2.", Split::Rows, parallel),
        mlp_scale_(parameters.get_if_declared(prefix + "mlp.layer_scale")) {}

  void add_to(Residual& stream, const PackedSequences& sequences, Result output) const {
    const at::Tensor attended = attend(qkv_.linear(normed(stream, qkv_)), attention_, false, sequences, parallel_);
    stream.add(scaled(proj_.branch(attended), attention_scale_));
    stream.add(scaled(mlp(stream, mlp_scale_.defined() ? Result::Needed : output), mlp_scale_));
  }

 private:
  struct NormedLinear {
    at::Tensor norm_weight, norm_bias;
    Linear linear;

    NormedLinear(const Parameters& parameters, const std::string& prefix, const Parallel& parallel)
        : norm_weight(parameters.get(prefix + "layer_norm_weight")),
          norm_bias(parameters.get(prefix + "layer_norm_bias")),
          linear(parameters, prefix, Split::Columns, parallel) {}
  };

  Recomputable normed(const Residual& x, const NormedLinear& map) const {
    return x.layer_norm(map.norm_weight, map.norm_bias, norm_eps_, recompute_.norms);
  }

  Branch mlp(const Residual& x, Result output) const {
    return Linear::gelu_branch(normed(x, fc1_), fc1_.linear, fc2_, gelu_, recompute_.activations, output);
  }

  static Branch scaled(const Branch& branch, const at::Tensor& scale) {
    return scale.defined() ? Branch(branch.value() * scale) : branch;
  }

  const AttentionShape attention_;
  const double norm_eps_;
  const RecomputeConfig recompute_;
  const Activation gelu_;
  const Parallel& parallel_;
  const NormedLinear qkv_;
  const Linear proj_;
  const at::Tensor attention_scale_;
  const NormedLinear fc1_;
  const Linear fc2_;
  const at::Tensor mlp_scale_;
};

EncoderLayers::EncoderLayers(const EncoderLayersConfig& config, const Parameters& parameters, const Parallel& parallel,
                             int stage, int pp, const RecomputeConfig& recompute)
    : parameters_(parameters), recompute_(in_encoder(recompute)) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of an encoder has all tokens");
  const std::vector<int> bounds = even_stages(config.layers, pp);
  for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    layers_.emplace_back(prefix, std::make_unique<TransformerLayer>(config, parameters, prefix, parallel, recompute_));
  }
}

EncoderLayers::~EncoderLayers() = default;

at::Tensor EncoderLayers::run(at::Tensor x, const PackedSequences& sequences) const {
  Residual stream(std::move(x));
  for (const auto& [prefix, layer] : layers_) {
    parameters_.await(prefix);
    // Copied, because backward may run the layer again after the caller's sequences are gone.
    const auto add_branches = [layer = layer.get(), sequences](Residual& to, Result output) {
      layer->add_to(to, sequences, output);
    };
    add_layer(stream, add_branches, recompute_.full, parameters_.trains());
  }
  return stream.value();
}

at::Tensor named_layer_norm(const at::Tensor& x, const Parameters& parameters, const std::string& name, double eps) {
  parameters.await(name + ".");
  return layer_norm(x, parameters.get(name + ".weight"), parameters.get(name + ".bias"), eps);
}

Projector::Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel)
    : parameters_(parameters),
      parallel_(parallel),
      first_(parameters, config.kind == "affine" ? "encoder." : "encoder.linear_fc1.", Split::Columns, parallel) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of the projector has all tokens");
  if (config.kind != "affine") second_.emplace(parameters, "encoder.linear_fc2.", Split::Rows, parallel);
}

at::Tensor Projector::forward(const at::Tensor& x) const {
  parameters_.await("encoder.");
  return second_ ? (*second_)(squared_relu(first_(x))) : gather_features(first_(x), parallel_);
}

}  // namespace braid
