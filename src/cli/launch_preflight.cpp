// The checks before a launch on a cluster.
#include <fmt/ranges.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/strings.h"
#include "base/terminal.h"
#include "cli/launch_commands.h"
#include "cluster/megatron/rank_command.h"
#include "cluster/megatron/shell_text.h"
#include "plan/topology_config.h"
#include "predict/memory.h"
#include "run/start_checks.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

std::vector<PathUse> paths_of(const SlurmOptions& options) {
  std::vector<PathUse> uses = {{"--workdir", options.workdir, PathUse::MustExist}};
  if (!options.log_dir.empty()) uses.push_back({"--log-dir", options.log_dir, PathUse::Written});
  if (is_image_file(options.container)) uses.push_back({"--container", options.container, PathUse::MustExist});
  for (const std::string& mount : options.mounts)
    uses.push_back({"--mount", mount.substr(0, mount.find(':')), PathUse::MustExist});
  for (const auto& [what, path] : {std::pair{"--cache-dir", options.cache_dir}, {"--stage", options.stage}})
    if (!path.empty()) uses.push_back({what, path, PathUse::Written});
  for (const std::string& setting : options.env)
    for (const CacheVariable& cache : kCacheVariables)
      if (setting.starts_with(std::string(cache.name) + "="))
        uses.push_back({std::string(cache.name), setting.substr(cache.name.size() + 1), PathUse::Shared});
  return uses;
}

// Of a whole step: parameters, optimizer, activations.
void check_memory(const Recipe& recipe, double gpu_gb, Preflight& preflight) {
  const Topology topology(recipe.topology, workload_of(recipe));
  for (Problem& problem : gpu_memory_problems(recipe, topology, static_cast<std::int64_t>(gpu_gb * 1e9)))
    preflight.problems.push_back(std::move(problem));
}

std::vector<std::string> literal_words(const std::string& text) {
  std::vector<std::string> words;
  for (const ShellCommand& command : simple_commands(text))
    for (const ShellWord& word : command.words)
      if (word.value) words.push_back(*word.value);
  return words;
}

// A command line tells less than a recipe, so its problems are only warnings.
void check_experts(const ParallelFlags& flags, double gpu_gb, const Allocation& allocation, Preflight& preflight) {
  if (!flags.experts || !flags.hidden || !flags.expert_ffn || !flags.layers) return;
  constexpr double kBytesOfBf16 = 2;
  const double matrices = flags.gated ? 3 : 2;
  WeightsPerGpu weights = {.module = "the model", .experts = *flags.experts, .ep = flags.ep};
  weights.expert_bytes = kBytesOfBf16 * matrices * *flags.experts * *flags.hidden * *flags.expert_ffn * *flags.layers /
                         flags.pp / flags.expt_tp;
  const ModuleConfig module = {.tp = flags.tp,
                               .cp = flags.cp,
                               .dp = static_cast<int>(std::max<std::int64_t>(
                                   1, allocation.gpus() / (std::int64_t{flags.tp} * flags.cp * flags.pp))),
                               .pp = flags.pp,
                               .expt_tp = flags.expt_tp};
  weights.possible_ep = possible_ep(module, *flags.experts);
  Preflight found;
  check_weights(weights, gpu_gb, found);
  for (Problem& problem : found.problems) preflight.warnings.push_back(std::move(problem));
}

void check_surroundings(const std::string& text, const SlurmOptions& options, const Allocation& allocation,
                        Preflight& preflight) {
  std::error_code ignored;
  if (fs::exists(fs::path(options.workdir) / "nemo_experiments", ignored))
    preflight.warnings.push_back({"there is a folder nemo_experiments: Megatron-Bridge resumes from a checkpoint there",
                                  options.workdir, "remove it, unless that is what you want"});
  const bool is_python = text.find("python") != std::string::npos || text.find("torchrun") != std::string::npos;
  const bool has_home = std::any_of(options.env.begin(), options.env.end(),
                                    [](const std::string& setting) { return setting.rfind("NEMO_HOME=", 0) == 0; });
  if (!options.container.empty() && allocation.nodes > 1 && is_python && options.cache_dir.empty() && !has_home)
    preflight.warnings.push_back(
        {"the caches (HF_HOME, UV_CACHE_DIR, NEMO_HOME) are inside each container: nodes do not see data prepared on "
         "other nodes",
         "--container", "give --cache-dir FOLDER on the shared file system"});
}

void check_outputs(const std::string& text, const SlurmOptions& options, const Allocation& allocation,
                   Preflight& preflight) {
  if (allocation.nodes == 1 && options.style == "torchrun") return;  // one task
  for (const std::string& file : shared_outputs(text))
    preflight.warnings.push_back({fmt::format("all tasks of the job would overwrite one file: {}", file), "the command",
                                  "leave it out (the job's log has all output), or put $SLURM_PROCID into its name"});
}

void check_directives(const std::string& text, Preflight& preflight) {
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n'))
    if (line.starts_with("#SBATCH")) lines.push_back(line);
  if (!lines.empty())
    preflight.warnings.push_back({fmt::format("these lines of the command have no effect: {}", fmt::join(lines, "; ")),
                                  "the command", "give them as options, e.g. --time, or --sbatch --qos=high"});
}

// Paths are relative to the job's folder. What is inside a container is not known here.
void check_data(Recipe recipe, const SlurmOptions& options, const Allocation& allocation, Preflight& preflight) {
  DataConfig& data = recipe.data.set;
  if (!is_mock(recipe.data) && !data.path.empty()) {
    if (!options.container.empty()) return;
    std::vector<PathUse> unseen;
    for (const auto& [key, path] : {std::pair("data.path", &data.path), std::pair("data.tokenizer", &data.tokenizer)}) {
      *path = fs::path(options.workdir) / *path;
      if (!can_be_seen(*path)) unseen.push_back({key, *path, PathUse::MustExist});
    }
    check_paths(unseen, allocation, preflight);
    if (!unseen.empty()) return;
  }
  for (Problem& problem :
       check_data(recipe, Topology(recipe.topology, workload_of(recipe)), data_uses(recipe)).problems)
    preflight.problems.push_back(std::move(problem));
}

std::string user_name() {
  const passwd* entry = getpwuid(geteuid());
  return entry ? entry->pw_name : std::to_string(geteuid());
}

}  // namespace

Preflight preflight_of(const Recipe& recipe, const SlurmOptions& options, const Allocation& allocation) {
  Preflight preflight;
  if (allocation.gpus_per_node > 0) {
    check_nodes(recipe.topology, workload_of(recipe), allocation, preflight);
    check_memory(recipe, options.gpu_memory_gb, preflight);
  }
  std::vector<PathUse> uses = paths_of(options);
  const std::string &save = recipe.checkpoint.save, &load = recipe.checkpoint.load;
  if (!save.empty()) uses.push_back({"--save", fs::path(options.workdir) / save, PathUse::Written});
  if (!load.empty() && load != save) uses.push_back({"--load", fs::path(options.workdir) / load, PathUse::Shared});
  check_paths(uses, allocation, preflight);
  check_data(recipe, options, allocation, preflight);
  return preflight;
}

Preflight preflight_of(const std::string& command_text, const SlurmOptions& options, const Allocation& allocation) {
  Preflight preflight;
  const ParallelFlags flags = parallel_flags(literal_words(command_text));
  if (allocation.gpus_per_node > 0) {
    check_nodes(flags, allocation, preflight);
    check_experts(flags, options.gpu_memory_gb, allocation, preflight);
  }
  check_paths(paths_of(options), allocation, preflight);
  check_surroundings(command_text, options, allocation, preflight);
  check_outputs(command_text, options, allocation, preflight);
  check_directives(command_text, preflight);
  return preflight;
}

void check_with_slurm(const SlurmOptions& options, const Allocation& allocation, Preflight& preflight) {
  check_slurm({options.account, options.partition, options.time, allocation}, view_slurm(user_name()), preflight);
}

void print_warning(const Problem& problem) {
  const std::string text =
      fmt::format("braid: warning: {}\n  where: {}\n  fix:   {}", problem.what, problem.where, problem.fix);
  fmt::print(stderr, "{}\n", fitted(text, STDERR_FILENO));
}

void settle(const Preflight& preflight, bool force) {
  for (const Problem& problem : preflight.warnings) print_warning(problem);
  if (preflight.problems.empty()) return;
  if (!force) throw ConfigError(preflight.problems);
  for (const Problem& problem : preflight.problems) print_warning(problem);
}

}  // namespace braid
