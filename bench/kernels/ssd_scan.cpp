#include "ops/ssd_scan.h"
#include "cases.h"
#include "ops/has_kernel.h"

namespace braid {

// x, B and C are columns of the convolution's output, dt of the in_proj's, as in the model.
std::vector<KernelCase> ssd_scan_cases() {
  constexpr std::int64_t kHeads = 64, kWidth = 64, kGroups = 8, kState = 128, kChunk = 128;
  constexpr std::int64_t kInner = kHeads * kWidth, kShared = kGroups * kState;
  const at::Tensor features = random_bf16({kTokens, 2 * kInner + 2 * kShared + kHeads});
  const at::Tensor mixed = random_bf16({kTokens, kInner + 2 * kShared}), grad = random_bf16({kTokens, kHeads, kWidth});
  const auto columns = [](const at::Tensor& x) {
    return std::vector<at::Tensor>{x.narrow(1, 0, kInner).unflatten(1, {kHeads, kWidth}),
                                   x.narrow(1, kInner, kShared).unflatten(1, {kGroups, kState}),
                                   x.narrow(1, kInner + kShared, kShared).unflatten(1, {kGroups, kState})};
  };
  const auto inputs = [&](const at::Tensor& x_b_c, const at::Tensor& wide) {
    const std::vector<at::Tensor> parts = columns(x_b_c);
    const at::Tensor weights = random_bf16({3, kHeads});
    return SsdInputs{
        parts[0],  wide.narrow(1, wide.size(1) - kHeads, kHeads), weights[0], parts[1], parts[2], weights[1],
        weights[2]};
  };
  const SsdInputs in = inputs(mixed, features);
  const SsdInputs gradients = inputs(at::empty_like(mixed), at::empty_like(features));
  const SsdOptions options{.chunk = kChunk};
  const PackedSequences sequences = pack_sequences({0, kTokens}, at::Device(at::kCUDA));
  const SsdSaved saved = ssd_scan_forward(in, options, sequences).saved;
  SsdSaved aten_saved;
  {
    const WithoutKernels guard;
    aten_saved = ssd_scan_forward(in, options, sequences).saved;
  }

  // Per chunk and head: causal products (scores, shared by a group; weights and x) count half.
  const double chunks = double(kTokens) / kChunk, heads = kHeads, groups = kGroups;
  const double inside = double(kChunk) * kChunk * kWidth, through = 2.0 * kChunk * kWidth * kState;
  const double scores = double(kChunk) * kChunk * kState;
  const double flops = chunks * (heads * (2 * through + inside) + groups * scores);
  const double backward_flops = chunks * (heads * (4 * through + 2 * inside) + groups * 3 * scores);
  const auto x = static_cast<double>(in.x.numel() * 2), b = static_cast<double>(in.B.numel() * 2);
  const auto state = static_cast<double>(saved.states.nbytes());
  return {{"ssd_scan", 2 * x + 2 * b + state, flops, [=] { ssd_scan_forward(in, options, sequences); }},
          {"ssd_scan backward", 3 * x + 4 * b + state, backward_flops, [=] {
             ssd_scan_backward_into(grad, in, has_kernel({grad}) ? saved : aten_saved, options, sequences, gradients);
           }}};
}

}  // namespace braid
