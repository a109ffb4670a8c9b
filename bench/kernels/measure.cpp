#include "measure.h"
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAEvent.h>
#include <stdexcept>
#include "cases.h"
#include "ops/has_kernel.h"
#include "peer.h"

namespace braid {
namespace {

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

double aten_ms(const KernelCase& kernel) {
  const WithoutKernels guard;
  return median_ms(kernel.run);
}

}  // namespace

std::vector<Measurement> measure_kernels(const std::string& part, const std::string& python) {
  const at::NoGradGuard guard;
  std::vector<Measurement> measurements;
  for (const auto& cases :
       {activation_cases, attention_cases, cross_entropy_cases, embedding_cases, fp8_cases, mamba_cases, moe_cases,
        norm_cases, optimizer_cases, position_cases, ssd_scan_cases, vision_cases})
    for (const KernelCase& kernel : cases())
      if (kernel.name.find(part) != std::string::npos)
        measurements.push_back({.work = kernel.name,
                                .ms = median_ms(kernel.run),
                                .aten_ms = aten_ms(kernel),
                                .bytes = kernel.bytes,
                                .flops = kernel.flops,
                                .fp8 = kernel.fp8});
  if (python.empty() || measurements.empty()) return measurements;
  at::accelerator::emptyCache();
  const auto peer = run_peer(
      fmt::format("{} {} {}", shell_quoted(python), shell_quoted(BRAID_KERNELS_PEER_SCRIPT), shell_quoted(part)));
  if (!peer) throw std::runtime_error("the peer's kernels failed");
  for (Measurement& m : measurements)
    if (peer->contains(m.work)) m.peer_ms = peer->at(m.work).get<double>();
  return measurements;
}

}  // namespace braid
