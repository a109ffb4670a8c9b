#include "dist/backend_factory.h"

#include <algorithm>

#include "base/error.h"

namespace braid {

std::string fitting_backend(const std::vector<std::string>& devices) {
  std::vector<std::string> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  const bool some_on_cpu = sorted.front().empty();
  const bool some_shared = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  return some_on_cpu || some_shared ? "gloo" : "nccl";
}

std::string group_key(const std::string& name, const std::vector<int>& ranks) {
  return fmt::format("{}/{}", name, fmt::join(ranks, ","));
}

}  // namespace braid
