#include "comm/visible_gpus.h"

#include <dlfcn.h>
#include <torch/cuda.h>

#include <algorithm>

#include "base/process.h"
#include "base/socket.h"

namespace braid {

int visible_gpus() {
  const NoSignals in_threads;  // for the threads that CUDA's driver starts here
  return static_cast<int>(torch::cuda::device_count());
}

namespace {

// The functions of NVML that are needed here, found when they are called: machines without GPUs have no such library.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    works_ = library_ != nullptr && call("nvmlInit_v2");
  }
  ~Nvml() {
    if (works_) call("nvmlShutdown");
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;

  std::int64_t smallest_memory() const {
    unsigned count = 0;
    if (!works_ || !call("nvmlDeviceGetCount_v2", &count)) return 0;
    std::int64_t least = 0;
    for (unsigned i = 0; i < count; ++i) {
      void* gpu = nullptr;
      struct {
        unsigned long long total, free, used;
      } memory = {};
      if (!call("nvmlDeviceGetHandleByIndex_v2", i, &gpu) || !call("nvmlDeviceGetMemoryInfo", gpu, &memory)) return 0;
      const auto total = static_cast<std::int64_t>(memory.total);
      least = i == 0 ? total : std::min(least, total);
    }
    return least;
  }

 private:
  // Whether the function exists and succeeds.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function != nullptr && function(arguments...) == 0;
  }

  void* const library_;
  bool works_ = false;
};

}  // namespace

std::int64_t gpu_memory_bytes() {
  const NoSignals in_threads;  // for the threads that NVIDIA's driver may start here
  return Nvml().smallest_memory();
}

Problem no_gpu(const std::string& where) {
  return {fmt::format("no GPU is visible on {}", host_name()), where,
          "use a build and a machine with CUDA, or dist.device=cpu and dist.backend=auto"};
}

}  // namespace braid
