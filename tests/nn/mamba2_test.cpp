// Mamba2 against its definition, written token by token.
#include "nn/mamba2.h"
#include <ATen/ATen.h>
#include "nn/layer_check.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kHidden = 6, kHeads = 8, kWidth = 3, kGroups = 4, kState = 5, kKernel = 4;
constexpr std::int64_t kInner = kHeads * kWidth, kStates = kGroups * kState, kConv = kInner + 2 * kStates;
constexpr double kEps = 1e-5;

std::vector<ParamSpec> make_specs(bool conv_bias) {
  const InitRule normal = {.kind = InitRule::Normal, .scale = 0.7};
  std::vector<ParamSpec> specs = {{.name = "in_proj.layer_norm_weight", .shape = {kHidden}, .init = normal},
                                  {.name = "in_proj.weight",
                                   .shape = {kInner + kConv + kHeads, kHidden},
                                   .tp_dim = 0,
                                   .tp_blocks = {kInner, kInner, kStates, kStates, kHeads},
                                   .init = normal},
                                  {.name = "conv1d.weight",
                                   .shape = {kConv, 1, kKernel},
                                   .tp_dim = 0,
                                   .tp_blocks = {kInner, kStates, kStates},
                                   .init = normal},
                                  {.name = "A_log", .shape = {kHeads}, .tp_dim = 0, .init = normal},
                                  {.name = "D", .shape = {kHeads}, .tp_dim = 0, .init = normal},
                                  {.name = "dt_bias", .shape = {kHeads}, .tp_dim = 0, .init = normal},
                                  {.name = "norm.weight", .shape = {kInner}, .tp_dim = 0, .init = normal},
                                  {.name = "out_proj.weight", .shape = {kHidden, kInner}, .tp_dim = 1, .init = normal}};
  if (conv_bias)
    specs.push_back({.name = "conv1d.bias",
                     .shape = {kConv},
                     .tp_dim = 0,
                     .tp_blocks = {kInner, kStates, kStates},
                     .init = normal});
  return specs;
}

at::Tensor swish(const at::Tensor& x) { return x / (1 + (-x).exp()); }

at::Tensor root_mean_square(const at::Tensor& x) { return (x.square().mean() + kEps).sqrt(); }

// One sequence, token by token: the projected inputs so far, and the state of each head.
class Definition {
 public:
  Definition(const Parameters& parameters, const SsdOptions& options) : parameters_(parameters), options_(options) {
    states_.assign(kHeads, at::zeros({kWidth, kState}, at::kDouble));
  }

  at::Tensor next(const at::Tensor& x) {
    const at::Tensor normed = x / root_mean_square(x) * get("in_proj.layer_norm_weight");
    const auto z_xbc_dt = get("in_proj.weight").mv(normed).split_with_sizes({kInner, kConv, kHeads});
    before_.push_back(z_xbc_dt[1]);
    const auto x_b_c = swish(convolved()).split_with_sizes({kInner, kStates, kStates});
    Tensors heads;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t group = head / (kHeads / kGroups);
      heads.push_back(step(head, x_b_c[0].view({kHeads, kWidth})[head], x_b_c[1].view({kGroups, kState})[group],
                           x_b_c[2].view({kGroups, kState})[group], z_xbc_dt[2][head]));
    }
    const at::Tensor gated = at::cat(heads) * swish(z_xbc_dt[0]);
    Tensors groups;
    for (const at::Tensor& group : gated.chunk(kGroups)) groups.push_back(group / root_mean_square(group));
    return get("out_proj.weight").mv(at::cat(groups) * get("norm.weight"));
  }

 private:
  const at::Tensor& get(const char* name) const { return parameters_.get(name); }

  // The kernel's last column multiplies this token, the previous column the previous token.
  at::Tensor convolved() const {
    const at::Tensor bias = parameters_.get_if_declared("conv1d.bias");
    at::Tensor sum = bias.defined() ? bias : at::zeros({kConv}, at::kDouble);
    const auto tokens = static_cast<std::int64_t>(before_.size());
    for (std::int64_t age = 0; age < std::min(kKernel, tokens); ++age)
      sum = sum + get("conv1d.weight").select(1, 0).select(1, kKernel - 1 - age) *
                      before_[static_cast<std::size_t>(tokens - 1 - age)];
    return sum;
  }

  at::Tensor step(std::int64_t head, const at::Tensor& x, const at::Tensor& b, const at::Tensor& c,
                  const at::Tensor& dt) {
    const at::Tensor time = (dt + get("dt_bias")[head]).exp().log1p().clamp(options_.dt_min, options_.dt_max);
    at::Tensor& state = states_[static_cast<std::size_t>(head)];
    state = (-time * get("A_log")[head].exp()).exp() * state + time * at::outer(x, b);
    return state.mv(c) + get("D")[head] * x;
  }

  const Parameters& parameters_;
  const SsdOptions options_;
  Tensors before_, states_;
};

LayerCheck mamba2(const std::vector<std::int64_t>& offsets, const SsdOptions& options, bool conv_bias = true) {
  LayerCheck check = {
      .specs = make_specs(conv_bias), .offsets = offsets, .hidden = kHidden, .definition = {}, .make_layer = {}};
  check.definition = [=](const Parameters& parameters, const at::Tensor& x) {
    Tensors outputs;
    for (std::size_t sequence = 0; sequence + 1 < offsets.size(); ++sequence) {
      Definition definition(parameters, options);
      for (std::int64_t t = offsets[sequence]; t < offsets[sequence + 1]; ++t) outputs.push_back(definition.next(x[t]));
    }
    return at::stack(outputs);
  };
  check.make_layer = [=](const Parameters& parameters, const Parallel& parallel) {
    const Mamba2Shape shape = {.heads = kHeads, .head_dim = kWidth, .groups = kGroups, .state = kState};
    return std::make_unique<Mamba2>(shape, options, kEps, parameters, "", parallel);
  };
  return check;
}

const SsdOptions kUnclamped = {.chunk = 4};

// Ranks hold 3 tokens or more: sequences begin and end inside a rank's share, and one spans several. One sequence is
// shorter than the kernel. More than four ranks share groups.
TEST(Mamba2, IsItsDefinitionInEveryLayout) {
  mamba2({0, 7, 9, 24}, kUnclamped)
      .expect_definition_in({{},
                             {.tp = 2},
                             {.tp = 4},
                             {.tp = 2, .sp = true},
                             {.cp = 2},
                             {.cp = 4},
                             {.cp = 8},
                             {.tp = 2, .cp = 2},
                             {.tp = 2, .cp = 4},
                             {.tp = 2, .cp = 2, .sp = true},
                             {.tp = 2, .sp = true, .overlap = {.tp_pieces = 2}},
                             {.tp = 2, .cp = 2, .sp = true, .overlap = {.tp_pieces = 4}}});
}

// About a third of all time steps lie below these limits, a third above.
TEST(Mamba2, IsItsDefinitionWithLimitsOnTheTimeStep) {
  mamba2({0, 12}, {.chunk = 4, .dt_min = 0.4, .dt_max = 1.1}).expect_definition_in({{}, {.tp = 2}, {.cp = 2}});
}

TEST(Mamba2, DoesWithoutABiasOfTheConvolution) {
  mamba2({0, 12}, kUnclamped, /*conv_bias=*/false).expect_definition_in({{}, {.tp = 2, .cp = 2}});
}

}  // namespace
}  // namespace braid
