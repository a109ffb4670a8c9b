#include "ops/attention.h"
#include "cases.h"
#include "ops/has_kernel.h"

namespace braid {

// RADIO-H: each of 8 images attends to itself.
std::vector<KernelCase> attention_cases() {
  constexpr std::int64_t kImages = 8, kImageTokens = kRadioTokens / kImages, kHeads = 16,
                         kWidth = kRadioHidden / kHeads;
  std::vector<std::int64_t> offsets;
  for (std::int64_t image = 0; image <= kImages; ++image) offsets.push_back(image * kImageTokens);
  const PackedSequences sequences = pack_sequences(offsets, at::kCUDA);
  const at::Tensor groups = random_bf16({kRadioTokens, kHeads, 3, kWidth});
  const at::Tensor grad = random_bf16({kRadioTokens, kHeads, kWidth});
  const double scale = 1 / std::sqrt(double{kWidth});
  const auto bytes = static_cast<double>(groups.nbytes()), out_bytes = static_cast<double>(grad.nbytes());
  const double product = 2.0 * kRadioTokens * kImageTokens * kRadioHidden;  // of scores, or with values
  const auto forward = [=] { return attention_forward(groups, sequences, /*causal=*/false, scale); };
  const auto forward_by_aten = [&] {
    const WithoutKernels guard;
    return forward();
  };
  const auto backward = [=, saved = forward().saved, saved_by_aten = forward_by_aten().saved] {
    attention_backward(grad, groups, WithoutKernels::count > 0 ? saved_by_aten : saved, sequences, /*causal=*/false,
                       scale);
  };
  return {{"attention, RADIO", bytes + out_bytes, 2 * product, forward},
          {"attention, RADIO backward", 2 * bytes + 2 * out_bytes, 5 * product, backward}};
}

}  // namespace braid
