#include "ops/mamba.h"
#include "cases.h"
#include "ops/norm.h"

namespace braid {
namespace {

constexpr std::int64_t kInner = 4096, kConv = 6144, kHeads = 64, kGroups = 8, kTaps = 4;

double bytes_of(std::int64_t columns) { return static_cast<double>(kTokens * columns * 2); }

}  // namespace

std::vector<KernelCase> mamba_cases() {
  const PackedSequences sequences = pack_sequences({0, kTokens}, at::kCUDA);
  const at::Tensor features = random_bf16({kTokens, kInner + kConv + kHeads}), features_grad = at::empty_like(features);
  const auto z_of = [](const at::Tensor& x) { return x.slice(1, 0, kInner); };
  const auto xbc_of = [](const at::Tensor& x) { return x.slice(1, kInner, kInner + kConv); };

  const at::Tensor conv_weight = random_bf16({kConv, kTaps}), conv_bias = random_bf16({kConv});
  const at::Tensor conv_grad = random_bf16({kTokens, kConv});
  const auto conv = [=] { causal_conv_silu_forward(xbc_of(features), conv_weight, conv_bias, sequences); };
  const auto conv_backward = [=] {
    causal_conv_silu_backward_into(conv_grad, xbc_of(features), conv_weight, conv_bias, sequences,
                                   xbc_of(features_grad));
  };

  const at::Tensor y = random_bf16({kTokens, kInner}), grad = random_bf16({kTokens, kInner});
  const at::Tensor y_grad = at::empty_like(y), weight = random_bf16({kInner});
  const auto norm = [=] { return gated_rms_norm_forward(y, z_of(features), weight, kGroups, 1e-5); };
  const at::Tensor inverse_root = norm().saved;
  const auto norm_backward = [=] {
    gated_rms_norm_backward_into(grad, y, z_of(features), weight, inverse_root, y_grad, z_of(features_grad));
  };
  return {{"causal_conv_silu", 2 * bytes_of(kConv), 0, conv},
          {"causal_conv_silu backward", 3 * bytes_of(kConv), 0, conv_backward},
          {"gated_rms_norm", 3 * bytes_of(kInner), 0, norm},
          {"gated_rms_norm backward", 5 * bytes_of(kInner), 0, norm_backward}};
}

}  // namespace braid
