// The Nemotron hybrid language model as data: its sizes, its parameters, the pipeline stage of each layer, and which
// layouts it supports. No libtorch here.
//
// The pattern has one letter per residual layer: M Mamba2, * attention, E mixture of experts, - dense MLP. A '|'
// between letters starts a new pipeline stage; without any, layers are split as evenly as possible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "nn/config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct HybridLmConfig {
  std::string pattern = "M*E-";
  int hidden = 64;
  int vocab = 256;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  // Of the linear maps of layers, all but the router's.
  Fp8Mode fp8 = Fp8Mode::Off;

  int heads = 4, kv_heads = 2, head_dim = 16;  // attention

  int mamba_heads = 8, mamba_head_dim = 16, mamba_groups = 2, mamba_state = 16, mamba_conv = 4, mamba_chunk = 128;
  double mamba_dt_min = 0;  // softplus(dt) is clamped to [dt_min, dt_max]; dt_max 0: no upper limit
  double mamba_dt_max = 0;
  bool mamba_conv_bias = true;

  int ffn = 128;  // of a dense MLP layer

  int experts = 8, top_k = 2, expert_ffn = 64, shared_ffn = 128;  // shared_ffn 0: no shared expert
  double router_scaling = 1;
  bool router_normalize = true;
  double aux_loss_coeff = 0;  // of the sequence auxiliary loss
  double expert_bias_rate = 1e-3;
  bool force_load_balancing = false;  // random routing, for benchmarks
};

// The sizes that only layers of one kind have.
struct LayerSize {
  char letter;
  const char* key;
  int HybridLmConfig::*value;
  const char* help;
};
inline constexpr LayerSize kLayerSizes[] = {
    {'*', "heads", &HybridLmConfig::heads, "query heads of attention"},
    {'*', "kv_heads", &HybridLmConfig::kv_heads, "key/value heads of attention"},
    {'*', "head_dim", &HybridLmConfig::head_dim, "width of an attention head"},
    {'M', "mamba_heads", &HybridLmConfig::mamba_heads, "heads of a Mamba2 layer"},
    {'M', "mamba_head_dim", &HybridLmConfig::mamba_head_dim, "width of a Mamba2 head"},
    {'M', "mamba_groups", &HybridLmConfig::mamba_groups, "groups of heads that share B and C"},
    {'M', "mamba_state", &HybridLmConfig::mamba_state, "state size"},
    {'M', "mamba_conv", &HybridLmConfig::mamba_conv, "taps of the causal convolution"},
    {'M', "mamba_chunk", &HybridLmConfig::mamba_chunk, "chunk length of the scan"},
    {'-', "ffn", &HybridLmConfig::ffn, "inner width of an MLP layer"},
    {'E', "experts", &HybridLmConfig::experts, "experts of a mixture-of-experts layer"},
    {'E', "top_k", &HybridLmConfig::top_k, "experts per token"},
    {'E', "expert_ffn", &HybridLmConfig::expert_ffn, "inner width of an expert"},
    {'E', "shared_ffn", &HybridLmConfig::shared_ffn, "inner width of the shared expert, 0: none"}};
bool has_layer(const HybridLmConfig& config, char letter);

void describe(Fields& fields, HybridLmConfig& config);

// Why a text is not a layer pattern: it is too long, or has an invalid letter, the first of which is marked. Nothing
// for a valid pattern. The caller sets the problem's `where`.
std::optional<Problem> pattern_problem(const std::string& pattern, bool may_have_stages);

// The pattern without '|'.
std::string layer_letters(const HybridLmConfig& config);

// The first layer of each stage and, at the end, the number of layers: stage s has [bounds[s], bounds[s + 1]). The
// number of stages in the pattern, if any, must be pp; validate() checks this.
std::vector<int> stage_bounds(const HybridLmConfig& config, int pp);

// Every parameter of the model, named as Megatron names it, in layer order.
std::vector<ParamSpec> declare_parameters(const HybridLmConfig& config, int pp = 1);

// Why the config is invalid or does not support this layout; `where` of each problem is "<where>.<field>".
std::vector<Problem> validate(const HybridLmConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
