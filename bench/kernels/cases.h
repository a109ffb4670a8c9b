// The operators of the 20L slice (docs/benchmarks/llm_slice.md) at its sizes, each by Braid's kernel and by ATen.
#pragma once

#include <ATen/ATen.h>

namespace braid {

struct KernelCase {
  std::string name;
  double bytes = 0;  // that it must read and write
  double flops = 0;  // of matrix products; 0: memory is the limit
  std::function<void()> run;
  bool fp8 = false;  // its products are in fp8
};

constexpr std::int64_t kTokens = 8192, kHidden = 2688;
constexpr std::int64_t kRadioTokens = 8 * 1034, kRadioHidden = 1280;  // RADIO-H, 8 images of 512 x 512

inline at::Tensor random_bf16(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
}

std::vector<KernelCase> activation_cases();
std::vector<KernelCase> attention_cases();
std::vector<KernelCase> norm_cases();
std::vector<KernelCase> mamba_cases();
std::vector<KernelCase> ssd_scan_cases();
std::vector<KernelCase> moe_cases();
std::vector<KernelCase> cross_entropy_cases();
std::vector<KernelCase> embedding_cases();
std::vector<KernelCase> fp8_cases();
std::vector<KernelCase> optimizer_cases();
std::vector<KernelCase> vision_cases();
std::vector<KernelCase> position_cases();

}  // namespace braid
