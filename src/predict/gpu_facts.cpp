#include <ATen/cuda/CUDAContext.h>
#include "predict/calibrate.h"

namespace braid {

GpuFacts gpu_facts() {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(0);
  return {properties.name, static_cast<std::int64_t>(properties.totalGlobalMem)};
}

}  // namespace braid
