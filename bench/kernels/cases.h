// The operators of the 20L slice (docs/benchmarks/llm_slice.md) at its sizes, each by Braid's kernel and by ATen.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace braid {

struct KernelCase {
  std::string name;
  double bytes = 0;  // that it must read and write
  double flops = 0;  // of matrix products; 0: memory is the limit
  std::function<void()> run;
};

constexpr std::int64_t kTokens = 8192, kHidden = 2688;

inline at::Tensor random_bf16(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
}

std::vector<KernelCase> activation_cases();
std::vector<KernelCase> mamba_cases();
std::vector<KernelCase> position_cases();

}  // namespace braid
