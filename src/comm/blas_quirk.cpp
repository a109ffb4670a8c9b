#include "comm/blas_quirk.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace braid {

void work_around_blas() {
#ifdef __aarch64__
  constexpr const char* kGracePart = "0xd4f";  // Neoverse V2
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("CPU part", 0) == 0 && line.find(kGracePart) != std::string::npos) return;
  setenv("NVPL_BLAS_DEBUG_CPU_TYPE", "1", 0);
#endif
}

}  // namespace braid
