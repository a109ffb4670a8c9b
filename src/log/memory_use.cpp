#include "log/memory_use.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/error.h"

namespace braid {

MemoryUse host_memory() {
  long pages_mapped = 0, pages_resident = 0;
  std::ifstream("/proc/self/statm") >> pages_mapped >> pages_resident;
  // The high-water mark of getrusage() is inherited from the program that this process was before exec.
  std::ifstream status("/proc/self/status");
  double most_kb = 0;
  for (std::string word; status >> word;)
    if (word == "VmHWM:") status >> most_kb;
  constexpr double kMb = 1 << 20;
  MemoryUse memory;
  memory.host_mb = static_cast<double>(pages_resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMb;
  memory.max_host_mb = std::max(memory.host_mb, most_kb * 1024 / kMb);
  return memory;
}

std::vector<double> to_values(const MemoryUse& m) {
  return {m.allocated_mb, m.max_allocated_mb, m.reserved_mb, m.max_reserved_mb, m.host_mb, m.max_host_mb};
}

MemoryUse memory_of(const std::vector<double>& values) {
  BRAID_CHECK_EQ(values.size(), 6u, "one value for each member");
  return {values[0], values[1], values[2], values[3], values[4], values[5]};
}

std::string to_line(const MemoryUse& m) {
  const std::string gpu =
      fmt::format(" allocated: {:.2f} | max allocated: {:.2f} | reserved: {:.2f} | max reserved: {:.2f} |",
                  m.allocated_mb, m.max_allocated_mb, m.reserved_mb, m.max_reserved_mb);
  return fmt::format("memory (MB) |{} host: {:.2f} | max host: {:.2f}", m.max_reserved_mb > 0 ? gpu : "", m.host_mb,
                     m.max_host_mb);
}

}  // namespace braid
