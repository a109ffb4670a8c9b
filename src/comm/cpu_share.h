// How many threads each rank computes with. Launchers bind ranks to cores or do not, and two "nodes" may be one host,
// so ranks compare what they may use, and each takes its share.
#pragma once

namespace braid {

// The CPUs that a rank may use.
struct CpuShare {
  std::string host{};         // the same for all processes of one kernel
  std::vector<int> cpus{};    // numbers of its CPUs
  double quota = 0;           // CPUs that its cgroup may keep busy; 0: no limit
  std::string quota_group{};  // on that host: processes with the same one share the quota
};

CpuShare cpu_share_of_this_process();

std::string to_text(const CpuShare& share);
CpuShare parse_cpu_share(const std::string& text);

// For each rank: every CPU and every quota is divided evenly among the ranks that may use it. At least 1.
std::vector<int> threads_of_ranks(const std::vector<CpuShare>& ranks);

// The first call of NVPL BLAS, which libtorch's aarch64 wheel uses, never returns on some CPUs other than Grace (seen
// on Neoverse V1). Setting the CPU type avoids this. Call before the first matrix product.
void work_around_blas();

}  // namespace braid
