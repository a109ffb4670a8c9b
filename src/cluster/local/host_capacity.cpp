#include "cluster/local/host_capacity.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/socket.h"
#include "base/strings.h"
#include "comm/cpu_share.h"

namespace braid {
namespace {

std::optional<std::int64_t> memory_limit() {
  std::optional<std::int64_t> least;
  for (const std::filesystem::path& folder : cgroup_folders("memory"))
    for (const char* file : {"memory.max", "memory.limit_in_bytes"})  // the first may contain "max"
      if (const auto limit = parse_int64(first_line(folder / file))) least = std::min(*limit, least.value_or(*limit));
  return least;
}

}  // namespace

HostCapacity host_capacity() {
  HostCapacity room;
  room.cores = threads_of_ranks({cpu_share_of_this_process()}).at(0);
  room.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (const auto limit = memory_limit()) room.memory_bytes = std::min(room.memory_bytes, *limit);
  return room;
}

std::vector<Problem> oversubscription_problems(int ranks, const HostCapacity& room) {
  const int most = std::max(kRanksAnywhere, kRanksPerCore * room.cores);
  if (ranks <= most) return {};
  return {{fmt::format("{} ranks on {} would mostly wait for each other", ranks, counted(room.cores, "core")),
           "host " + host_name(),
           fmt::format("start at most {} here, or start them anyway with --oversubscribe", most)}};
}

std::vector<Problem> memory_problems(const std::vector<std::int64_t>& bytes, const HostCapacity& room) {
  const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  if (bytes.empty() || room.memory_bytes == 0 || all <= room.memory_bytes) return {};
  const auto most = std::max_element(bytes.begin(), bytes.end());
  return {{fmt::format("{} {} at least {} of memory (the largest {}), "
                       "but this host has {}",
                       counted(std::ssize(bytes), "rank"), bytes.size() == 1 ? "needs" : "need", readable_bytes(all),
                       readable_bytes(*most), readable_bytes(room.memory_bytes)),
           "host " + host_name(), "use more hosts, GPUs, or a smaller model; or start anyway with --oversubscribe"}};
}

void refuse_oversubscription(int ranks) {
  if (std::vector<Problem> problems = oversubscription_problems(ranks, host_capacity()); !problems.empty())
    throw ConfigError(std::move(problems));
}

}  // namespace braid
