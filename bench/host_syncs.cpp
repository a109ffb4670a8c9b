// Preloaded into ranks on a GPU, it counts the calls in which the host waits for the device, by call stack:
//   LD_PRELOAD=build/libhost_syncs.so BRAID_HOST_SYNCS=/tmp/syncs build/braid train RECIPE ...
// Each process appends its counts to /tmp/syncs.PID when it ends; bench/host_syncs.py compares two lengths of a run, so
// that only what every step does is left, and names the functions.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <execinfo.h>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <utility>

namespace {

constexpr int kFrames = 24;
using Stack = std::array<void*, kFrames>;

class Counts {
 public:
  ~Counts() { write(); }

  void add(const char* call) {
    Stack stack{};
    backtrace(stack.data(), kFrames);
    const std::lock_guard lock(mutex_);
    ++counts_[{call, stack}];
  }

 private:
  // One line per stack: count, call, and its frames as module+offset, innermost first.
  void write() const {
    const char* const prefix = std::getenv("BRAID_HOST_SYNCS");
    if (!prefix || counts_.empty()) return;
    std::FILE* const file = std::fopen((std::string(prefix) + "." + std::to_string(getpid())).c_str(), "w");
    if (!file) return;
    for (const auto& [where, count] : counts_) {
      std::fprintf(file, "%ld %s", count, where.first);
      for (void* const frame : where.second) {
        Dl_info info{};
        if (!frame || !dladdr(frame, &info) || !info.dli_fname) continue;
        const auto offset = static_cast<char*>(frame) - static_cast<char*>(info.dli_fbase);
        std::fprintf(file, " %s+0x%lx", info.dli_fname, static_cast<unsigned long>(offset));
      }
      std::fputc('\n', file);
    }
    std::fclose(file);
  }

  std::mutex mutex_;
  std::map<std::pair<const char*, Stack>, long> counts_;
};

Counts& counts() {
  static Counts all;
  return all;
}

template <class... Arguments>
int counted(const char* call, Arguments... arguments) {
  counts().add(call);
  return reinterpret_cast<int (*)(Arguments...)>(dlsym(RTLD_NEXT, call))(arguments...);
}

}  // namespace

// Declared here and not by CUDA's headers, so that this builds anywhere. A copy of libtorch's that waits is followed by
// cudaStreamSynchronize.
extern "C" {
int cudaDeviceSynchronize() { return counted("cudaDeviceSynchronize"); }
int cudaStreamSynchronize(void* stream) { return counted("cudaStreamSynchronize", stream); }
int cudaEventSynchronize(void* event) { return counted("cudaEventSynchronize", event); }
int cudaMemcpy(void* to, const void* from, std::size_t size, int kind) {
  return counted("cudaMemcpy", to, from, size, kind);
}
int cudaMalloc(void** to, std::size_t size) { return counted("cudaMalloc", to, size); }
int cudaFree(void* memory) { return counted("cudaFree", memory); }
}
