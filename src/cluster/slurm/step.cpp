#include "cluster/slurm/step.h"

#include <fmt/ranges.h>

#include "cluster/megatron/shell_text.h"

namespace braid {

std::vector<std::string> exports_of_options(const SlurmOptions& options, bool is_braid) {
  std::vector<std::string> all;
  for (const auto& [name, folder] : kCacheVariables)
    if (!options.cache_dir.empty() && (!is_braid || name == "HF_HOME"))
      all.push_back(fmt::format("{}={}", name, shell_quoted(fmt::format("{}/{}", options.cache_dir, folder))));
  for (const std::string& setting : options.env) {
    const std::size_t value = setting.find('=') + 1;
    all.push_back(setting.substr(0, value) + shell_quoted(setting.substr(value)));
  }
  return all;
}

std::vector<std::string> exports_for_gpus() {
  return {"CUDA_DEVICE_MAX_CONNECTIONS=1", "NCCL_NVLS_ENABLE=0", "TORCH_NCCL_AVOID_RECORD_STREAMS=1",
          "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"};
}

std::vector<std::string> container_options(const SlurmOptions& options) {
  if (options.container.empty()) return {};
  std::vector<std::string> all = {"--container-image=" + options.container};
  if (!options.mounts.empty()) all.push_back(fmt::format("--container-mounts={}", fmt::join(options.mounts, ",")));
  all.push_back("--no-container-mount-home");
  return all;
}

std::vector<std::string> mpi_option(const SlurmOptions& options) {
  if (!options.mpi.empty()) return {"--mpi=" + options.mpi};
  if (!options.container.empty()) return {"--mpi=pmix"};
  return {};
}

}  // namespace braid
