// Times each operator of the 20L slice by Braid's kernel and by ATen, and shows how much of the GPU's limit it reaches.
//
//   build/bench_kernels [PART OF A NAME]
#include <ATen/cuda/CUDAEvent.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>

#include "base/table.h"
#include "cases.h"
#include "ops/has_kernel.h"

namespace {

using namespace braid;

constexpr double kBytesPerMs = 4.2e9, kFlopsPerMs = 790e9;  // what streams and large products reach on an H200

double median_ms(const std::function<void()>& run) {
  constexpr int kWarmUp = 3, kRepeats = 20;
  // Queued in front of every call, so that the host is ahead of the GPU and its own time does not count.
  const at::Tensor busy = random_bf16({8192, 8192});
  std::vector<float> times_ms;
  for (int i = -kWarmUp; i < kRepeats; ++i) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    at::mm(busy, busy);
    begin.record();
    run();
    end.record();
    end.synchronize();
    if (i >= 0) times_ms.push_back(begin.elapsed_time(end));
  }
  std::sort(times_ms.begin(), times_ms.end());
  return times_ms[times_ms.size() / 2];
}

std::vector<std::string> measured(const KernelCase& kernel) {
  const double ms = median_ms(kernel.run);
  double aten_ms = 0;
  {
    const WithoutKernels guard;
    aten_ms = median_ms(kernel.run);
  }
  const double limit_ms = std::max(kernel.bytes / kBytesPerMs, kernel.flops / kFlopsPerMs);
  return {kernel.name,
          fmt::format("{:.3f}", ms),
          fmt::format("{:.3f}", aten_ms),
          fmt::format("{:.2f}", aten_ms / ms),
          fmt::format("{:.0f}", kernel.bytes / ms / 1e6),
          kernel.flops > 0 ? fmt::format("{:.0f}", kernel.flops / ms / 1e9) : "",
          fmt::format("{:.0f} %", 100 * limit_ms / ms)};
}

}  // namespace

int main(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    fmt::print(stderr, "bench_kernels: no GPU is visible\n");
    return 1;
  }
  const std::string part = argc > 1 ? argv[1] : "";
  const at::NoGradGuard guard;
  std::vector<std::vector<std::string>> rows;
  for (const auto& cases :
       {activation_cases, attention_cases, cross_entropy_cases, embedding_cases, fp8_cases, mamba_cases, moe_cases,
        norm_cases, optimizer_cases, position_cases, ssd_scan_cases, vision_cases})
    for (const KernelCase& kernel : cases())
      if (kernel.name.find(part) != std::string::npos) rows.push_back(measured(kernel));
  fmt::print("{}", format_table({"operator", "ms", "ATen ms", "ATen / ms", "GB/s", "TFLOP/s", "of the limit"}, rows));
}
