#include "comm/backend_factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/socket.h"

namespace braid {

void share_gpu_over_nccl(int rank, bool one_host) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), /*overwrite=*/0); };
  set("NCCL_HOSTID", fmt::format("{}-rank-{}", host_name(), rank));
  set("NCCL_MAX_NCHANNELS", "1");  // each channel holds a multiprocessor and buffers, and there are many communicators
  set("NCCL_IB_DISABLE", "1");
  if (one_host) set("NCCL_SOCKET_IFNAME", "lo");
}

std::vector<std::string> fitting_backends(const std::vector<std::string>& devices) {
  std::vector<std::string> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  const bool some_on_cpu = sorted.front().empty();
  const bool some_shared = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (some_on_cpu) return {"gloo"};
  if (some_shared) return {"gloo", "nccl-shared"};
  return {"nccl", "gloo", "nccl-shared"};
}

std::string group_key(const std::string& name, const std::vector<int>& ranks) {
  return fmt::format("{}/{}", name, fmt::join(ranks, ","));
}

}  // namespace braid
