#include "dist/visible_gpus.h"

#include <torch/cuda.h>

#include "base/process.h"
#include "base/socket.h"

namespace braid {

int visible_gpus() {
  const NoSignals in_threads;  // for the threads that CUDA's driver starts here
  return static_cast<int>(torch::cuda::device_count());
}

Problem no_gpu(const std::string& where) {
  return {fmt::format("no GPU is visible on {}", host_name()), where,
          "use a build and a machine with CUDA, or dist.device=cpu and dist.backend=auto"};
}

}  // namespace braid
