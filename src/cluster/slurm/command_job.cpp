// Slurm jobs of programs other than Braid.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/strings.h"
#include "cluster/megatron/rank_command.h"
#include "cluster/megatron/shell_text.h"
#include "cluster/megatron/torchrun_call.h"
#include "cluster/slurm/script.h"

namespace braid {
namespace {

void check_ranks(const SlurmOptions& options, const RankCommand& command) {
  const int gpus = options.gpus_per_node;
  if (command.ranks_per_node && gpus > 0 && *command.ranks_per_node != gpus)
    throw ConfigError({fmt::format("the command asks for {} per node (--nproc_per_node), but the job for {} per node "
                                   "(--gpus-per-node)",
                                   counted(*command.ranks_per_node, "rank"), counted(gpus, "GPU")),
                       "--gpus-per-node",
                       fmt::format("give --gpus-per-node {}, or change --nproc_per_node in the command to {}",
                                   *command.ranks_per_node, gpus)});
  if (!command.ranks_per_node && gpus == 0)
    throw ConfigError({"the number of ranks per node is unknown", "--gpus-per-node",
                       "on a cluster without GPUs, give a torchrun command with --nproc_per_node"});
  if (command.nodes && *command.nodes > 1 && options.nodes && *options.nodes != *command.nodes)
    throw ConfigError({fmt::format("the command has --nnodes={}, the job --nodes {}", *command.nodes, *options.nodes),
                       "--nodes", "leave --nnodes out of the command: the script sets it"});
}

std::vector<std::string> usual_exports() {
  std::vector<std::string> all = exports_for_gpus();
  for (const char* of_python : {"NVTE_ALLOW_NONDETERMINISTIC_ALGO=1", "PYTHONUNBUFFERED=1"}) all.push_back(of_python);
  return all;
}

// Megatron-LM's scripts import the copy of Megatron-LM that projects keep in 3rdparty/.
std::string megatron_path(const SlurmOptions& options, const RankCommand& command) {
  const std::filesystem::path script(command.script);
  const std::filesystem::path megatron = std::filesystem::path(options.workdir) / "3rdparty" / "Megatron-LM";
  std::error_code ignored;
  if (!script.filename().string().starts_with("pretrain_") || !std::filesystem::is_directory(megatron, ignored))
    return "";
  return fmt::format("export PYTHONPATH={}\"${{PYTHONPATH:+:$PYTHONPATH}}\"\n", shell_quoted(megatron.string()));
}

// The text of a file that may be a shell script and mentions torchrun; otherwise empty.
std::string script_with_torchrun(const std::filesystem::path& file, bool read_by_shell) {
  constexpr std::uintmax_t kLongestScript = 1 << 20;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored) || std::filesystem::file_size(file, ignored) > kLongestScript)
    return "";
  std::ifstream stream(file);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  const bool is_script =
      read_by_shell || file.extension() == ".sh" || file.extension() == ".bash" || text.starts_with("#!");
  const bool mentions_it = text.find("torchrun") != text.npos || text.find("torch.distributed") != text.npos;
  return is_script && mentions_it ? text : "";
}

bool reads_scripts(const std::string& program) {
  return program == "bash" || program == "sh" || program == "source" || program == ".";
}

// Every rank would run the script and so call torchrun.
void refuse_scripts_with_torchrun(const SlurmOptions& options, const std::string& text) {
  for (const ShellCommand& command : simple_commands(text)) {
    bool read_by_shell = false;
    for (const ShellWord& word : command.words) {
      const std::string name = word.value.value_or("");
      const bool calls_it =
          !name.empty() && !name.ends_with(".py") &&
          calls_torchrun(script_with_torchrun(std::filesystem::path(options.workdir) / name, read_by_shell));
      if (calls_it)
        throw ConfigError(
            {fmt::format("'{}' calls torchrun itself: every rank would start a torchrun", name), "the command",
             fmt::format("give --command-file {} instead, so that its torchrun can be replaced", shell_quoted(name))});
      read_by_shell |= reads_scripts(base_name(word));
    }
  }
}

void check_text(const SlurmOptions& options, const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw ConfigError({"there is no command", "command line", "give a recipe, or a command after --"});
  if (text.find("\r\n") != std::string::npos)
    throw ConfigError({"the command has Windows line endings, which bash treats as part of the words", "the command",
                       "convert it with dos2unix"});
  refuse_secrets(text);
  refuse_scripts_with_torchrun(options, text);
}

}  // namespace

SlurmJob job_of_command(const SlurmOptions& options, const std::string& text) {
  check_text(options, text);
  const bool torchrun = options.style == "torchrun";
  SlurmJob job;
  job.sets_rank_variables = sets_rank_variables(text);
  const auto rewritten = [&](int ranks) {
    return torchrun ? node_command(text, torchrun_world(ranks, job.sets_rank_variables))
                    : rank_command(text, rank_environment(ranks));
  };
  const RankCommand asked = rewritten(1);
  check_ranks(options, asked);
  job.nodes = options.nodes.value_or(asked.nodes.value_or(1));
  job.ranks_per_node = options.gpus_per_node > 0 ? options.gpus_per_node : *asked.ranks_per_node;
  const RankCommand command = rewritten(job.ranks_per_node);
  job.title = command.program.empty() ? "a command" : command.program;
  job.command = command.text;
  job.had_torchrun = command.had_torchrun;
  job.exports = usual_exports();
  job.prelude = megatron_path(options, command) + (command.has_pipe ? kPipesFail : "");
  if (!command.uv_sync.empty()) {
    job.first_phase = job.repeated = command.uv_sync + "\n";
  }
  if (!command.left_out.empty())
    job.notes.push_back(fmt::format("torchrun is not used here, so these options of it have no effect: {}",
                                    fmt::join(command.left_out, ", ")));
  return job;
}

}  // namespace braid
