// What the options of a job mean for its steps, and the commands of an interactive session.
#include <fmt/ranges.h>

#include "cluster/megatron/shell_text.h"
#include "cluster/slurm/script.h"

namespace braid {
namespace {

// Options that both salloc and srun need: srun does not take the GPUs of the allocation by itself.
std::vector<std::string> common_options(const SlurmOptions& options) {
  std::vector<std::string> all = {fmt::format("--nodes={}", options.nodes.value_or(1)),
                                  "--job-name=" + options.job_name, "--partition=" + options.partition};
  if (!options.account.empty()) all.push_back("--account=" + options.account);
  if (options.gpus_per_node > 0) all.push_back(fmt::format("--gpus-per-node={}", options.gpus_per_node));
  return all;
}

std::string first_lines(const SlurmOptions& options) {
  std::string text;
  for (const std::string& setting : exports_of_options(options, /*is_braid=*/false)) text += "export " + setting + "\n";
  if (!options.warm_up.empty()) text += options.warm_up + "\n";
  if (options.nodes.value_or(1) > 1)
    text += "# Run commands on all nodes with: srun --overlap (this shell is a step that already has their GPUs)\n";
  return text;
}

}  // namespace

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

std::string interactive_commands(const SlurmOptions& given) {
  const SlurmOptions options = with_absolute_paths(given, given.workdir);
  std::vector<std::string> salloc = {"salloc"}, srun = {"srun"};
  for (const std::string& option : common_options(options)) {
    salloc.push_back(option);
    srun.push_back(option);
  }
  salloc.push_back("--time=" + options.time);
  for (const std::string& option : mpi_option(options)) srun.push_back(option);
  srun.push_back("--no-kill");
  for (const std::string& option : container_options(options)) srun.push_back(option);
  for (const char* word : {"--pty", "bash"}) srun.push_back(word);
  const std::string inside = first_lines(options);
  return fmt::format(
      "# 1. On the login node: allocate nodes.\n{}\n\n# 2. In the shell that this starts: open a shell on the first "
      "node{}.\n{}\n{}",
      joined_quoted(salloc), options.container.empty() ? "" : ", in the container", joined_quoted(srun),
      inside.empty() ? "" : "\n# 3. In that shell, run these commands first.\n" + inside);
}

}  // namespace braid
