#include "comm/gpus.h"
#include <dlfcn.h>
#include "base/process.h"
#include "base/socket.h"

namespace braid {
namespace {

class DriverLibrary {
 public:
  explicit DriverLibrary(const char* name) : handle_(dlopen(name, RTLD_LAZY | RTLD_LOCAL), dlclose) {}

  // Whether the library has the function and its result is success.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    if (!handle_) return false;
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(handle_.get(), name));
    return function != nullptr && function(arguments...) == 0;
  }

 private:
  const NoSignals in_threads_;  // that the driver may start
  const std::unique_ptr<void, int (*)(void*)> handle_;
};

}  // namespace

int visible_gpus() {
  if (!BRAID_HAS_KERNELS) return 0;
  const DriverLibrary cuda("libcuda.so.1");
  int count = 0;
  return cuda.call("cuInit", 0u) && cuda.call("cuDeviceGetCount", &count) ? count : 0;
}

std::int64_t gpu_memory_bytes() {
  const DriverLibrary nvml("libnvidia-ml.so.1");
  if (!nvml.call("nvmlInit_v2")) return 0;
  unsigned count = 0;
  std::int64_t least = 0;
  bool known = nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; known && i < count; ++i) {
    void* gpu = nullptr;
    struct {
      unsigned long long total, free, used;
    } memory = {};
    known = nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &gpu) && nvml.call("nvmlDeviceGetMemoryInfo", gpu, &memory);
    const auto total = static_cast<std::int64_t>(memory.total);
    least = i == 0 ? total : std::min(least, total);
  }
  nvml.call("nvmlShutdown");
  return known ? least : 0;
}

Problem no_gpu(const std::string& where, const std::string& to_whom) {
  return {fmt::format("no GPU is visible{} on {}", to_whom, host_name()), where,
          "use a build and a machine with CUDA, or dist.device=cpu and dist.backend=auto"};
}

}  // namespace braid
