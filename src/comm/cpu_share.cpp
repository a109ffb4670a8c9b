#include "comm/cpu_share.h"
#include <nlohmann/json.hpp>
#include <sched.h>
#include "base/files.h"
#include "base/strings.h"

namespace braid {
namespace {

// "200000 100000" is 2 CPUs, "max 100000" no limit. cgroup v1 has two files, and -1 for no limit.
std::optional<double> quota_in(const fs::path& folder) {
  std::istringstream v2(first_line(folder / "cpu.max"));
  std::string text, period_text;
  if (!(v2 >> text >> period_text)) {
    text = first_line(folder / "cpu.cfs_quota_us");
    period_text = first_line(folder / "cpu.cfs_period_us");
  }
  const auto quota = parse_int64(text), period = parse_int64(period_text);
  if (!quota || !period || *quota <= 0 || *period <= 0) return {};
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;  // else more CPUs than the type holds
  const int most = known ? CPU_SETSIZE : static_cast<int>(std::thread::hardware_concurrency());
  std::vector<int> cpus;
  for (int cpu = 0; cpu < most; ++cpu)
    if (!known || CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

CpuShare cpu_share_of_this_process() {
  CpuShare share = {.host = first_line("/proc/sys/kernel/random/boot_id"), .cpus = allowed_cpus()};
  for (const fs::path& folder : cgroup_folders("cpu")) {
    const auto quota = quota_in(folder);
    if (!quota || (share.quota > 0 && *quota >= share.quota)) continue;
    share.quota = *quota;
    std::error_code ignored;  // two containers may name their cgroups alike
    share.quota_group = fs::read_symlink("/proc/self/ns/cgroup", ignored).string() + folder.string();
  }
  return share;
}

std::string to_text(const CpuShare& share) {
  return nlohmann::json::array({share.host, share.cpus, share.quota, share.quota_group}).dump();
}

CpuShare parse_cpu_share(const std::string& text) {
  const nlohmann::json parts = nlohmann::json::parse(text);
  return {parts.at(0), parts.at(1), parts.at(2), parts.at(3)};
}

std::vector<int> threads_of_ranks(const std::vector<CpuShare>& ranks) {
  std::map<std::pair<std::string, int>, int> users_of_cpu;
  std::map<std::pair<std::string, std::string>, int> users_of_quota;
  for (const CpuShare& rank : ranks) {
    for (const int cpu : rank.cpus) ++users_of_cpu[{rank.host, cpu}];
    ++users_of_quota[{rank.host, rank.quota_group}];
  }
  std::vector<int> threads;
  for (const CpuShare& rank : ranks) {
    auto cpus = sum_of<double>(rank.cpus, [&](const int cpu) { return 1.0 / users_of_cpu[{rank.host, cpu}]; });
    if (rank.quota > 0) cpus = std::min(cpus, rank.quota / users_of_quota[{rank.host, rank.quota_group}]);
    threads.push_back(std::max(1, static_cast<int>(cpus + 1e-6)));  // three thirds may add up to less than 1
  }
  return threads;
}

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
