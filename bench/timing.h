// Times of work on a GPU or a CPU.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <torch/cuda.h>

namespace braid {

inline void synchronize(const at::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

// The median of wall clock times until the device has finished, so that time in which the GPU waits for the host
// counts.
inline double median_ms(int repeats, const at::Device& device, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  constexpr int kWarmUp = 3;
  std::vector<double> times_ms;
  for (int i = -kWarmUp; i < repeats; ++i) {
    synchronize(device);
    const auto start = Clock::now();
    work();
    synchronize(device);
    if (i >= 0) times_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times_ms.begin(), times_ms.end());
  const std::size_t middle = times_ms.size() / 2;
  return times_ms.size() % 2 == 1 ? times_ms[middle] : (times_ms[middle - 1] + times_ms[middle]) / 2;
}

// The most memory of a GPU that was allocated at once since resetPeakStats(), in 1e9 bytes.
inline std::optional<double> peak_gb(const at::Device& device) {
  if (!device.is_cuda()) return std::nullopt;
  const auto all_pools = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(at::accelerator::getDeviceStats(device.index()).allocated_bytes[all_pools].peak) / 1e9;
}

}  // namespace braid
