// A step recorded as a CUDA graph: the same kernels, all queued by one call.
#pragma once

#include <ATen/ops/equal.h>
#include "base/error.h"
#include "timing.h"
#ifdef USE_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace braid {

// The median times of `step` and of its replay, in words. `step` returns a result that is the same in each call; a
// replay must give its bits.
inline std::string time_graph([[maybe_unused]] int repeats, [[maybe_unused]] const at::Device& device,
                              [[maybe_unused]] const std::function<at::Tensor()>& step) {
#ifdef USE_CUDA
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
  // Handles and plans are made in the first step; a recorded step may not make them.
  const at::Tensor expected = step();
  synchronize(device);
  at::cuda::CUDAGraph graph;
  // In this mode other threads may allocate memory meanwhile: backward runs on a thread of autograd.
  graph.capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
  const at::Tensor result = step();
  graph.capture_end();
  graph.replay();
  BRAID_CHECK(at::equal(result, expected), "a replayed step gives another result");
  const double ms_replay = median_ms(repeats, device, [&] { graph.replay(); });
  return fmt::format("queued {:.2f} ms, replayed as a CUDA graph {:.2f} ms",
                     median_ms(repeats, device, [&] { step(); }), ms_replay);
#else
  throw_check_failed(__FILE__, __LINE__, "a CPU build has no CUDA graphs");
#endif
}

}  // namespace braid
