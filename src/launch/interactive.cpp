#include "launch/interactive.h"

#include <fmt/ranges.h>

#include "launch/shell_text.h"

namespace braid {
namespace {

// What salloc and srun must both be told: srun does not take the GPUs of the allocation by itself.
std::vector<std::string> common_options(const SlurmOptions& options) {
  std::vector<std::string> all = {fmt::format("--nodes={}", options.nodes.value_or(1)),
                                  "--job-name=" + options.job_name, "--partition=" + options.partition};
  if (!options.account.empty()) all.push_back("--account=" + options.account);
  if (options.gpus_per_node > 0) all.push_back(fmt::format("--gpus-per-node={}", options.gpus_per_node));
  return all;
}

std::vector<std::string> container_options(const SlurmOptions& options) {
  if (options.container.empty()) return {};
  std::vector<std::string> all = {"--container-image=" + options.container, "--no-container-mount-home"};
  if (!options.mounts.empty()) all.push_back(fmt::format("--container-mounts={}", fmt::join(options.mounts, ",")));
  return all;
}

std::string exports(const SlurmOptions& options) {
  std::string text;
  if (!options.cache_dir.empty())
    for (const auto& [name, folder] :
         {std::pair{"HF_HOME", "huggingface"}, {"UV_CACHE_DIR", "uv"}, {"NEMO_HOME", "nemo"}})
      text += fmt::format("export {}={}\n", name, shell_quoted(options.cache_dir + "/" + folder));
  for (const std::string& setting : options.env) {
    const std::size_t equals = setting.find('=');
    text += fmt::format("export {}={}\n", setting.substr(0, equals), shell_quoted(setting.substr(equals + 1)));
  }
  return text + (options.warm_up.empty() ? "" : options.warm_up + "\n");
}

}  // namespace

std::string interactive_commands(const SlurmOptions& options) {
  std::vector<std::string> salloc = {"salloc"}, srun = {"srun"};
  for (const std::string& option : common_options(options)) {
    salloc.push_back(option);
    srun.push_back(option);
  }
  salloc.push_back("--time=" + options.time);
  const std::string mpi = options.mpi.empty() && !options.container.empty() ? "pmix" : options.mpi;
  if (!mpi.empty()) srun.push_back("--mpi=" + mpi);
  srun.push_back("--no-kill");
  for (const std::string& option : container_options(options)) srun.push_back(option);
  for (const char* word : {"--pty", "bash"}) srun.push_back(word);
  const std::string inside = exports(options);
  return fmt::format(
      "# 1. On the login node: nodes for you.\n{}\n\n# 2. In the shell that gives you: a shell on the first of "
      "them{}.\n{}\n{}",
      joined_quoted(salloc), options.container.empty() ? "" : ", in the container", joined_quoted(srun),
      inside.empty() ? "" : "\n# 3. In there, before anything else.\n" + inside);
}

}  // namespace braid
