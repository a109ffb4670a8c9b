// The file of a Slurm script, and sbatch.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/process.h"
#include "base/strings.h"
#include "cli/launch_commands.h"
#include "cluster/megatron/shell_text.h"
#include "cluster/slurm/preflight.h"
#include "cluster/slurm/script.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

void refuse_foreign_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  if (!fs::is_regular_file(path, ignored))  // reading a device may block, and the script would replace it
    throw ConfigError({fmt::format("'{}' is not a plain file", path), "--output", "give another name"});
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 3 && std::getline(file, line); ++i)
    if (line == kSlurmScriptMark) return;
  throw ConfigError({fmt::format("'{}' exists and was not made by braid launch slurm", path), "--output",
                     "give another name, or remove it"});
}

// A working folder that only the nodes or a container have is not created here.
bool is_elsewhere(const SlurmOptions& options) {
  std::error_code ignored;
  const bool below_workdir = fs::path(options.log_dir).lexically_relative(options.workdir).begin()->string() != "..";
  return !can_be_seen(options.log_dir) || (below_workdir && !fs::exists(options.workdir, ignored));
}

void make_log_folder(const SlurmOptions& options) {
  const std::string& path = options.log_dir;
  if (is_elsewhere(options)) {
    fmt::print(stderr,
               "braid: warning: the log folder '{}' cannot be created from here\n  where: --log-dir\n"
               "  fix:   create it on the nodes, or give a folder they share with this machine; without it Slurm ends "
               "the job without a message\n",
               path);
    return;
  }
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw ConfigError({fmt::format("cannot create the folder '{}': {}", path, error.message()), "--log-dir",
                       "give a folder that you can write to; without it Slurm ends the job without a message"});
}

}  // namespace

std::string called_as() {
  const std::string name = program_invocation_name;
  return name.find('/') == name.npos ? "braid" : shell_quoted(name);
}

void write_script(const SlurmOptions& options, const std::string& text) {
  const std::string& path = options.output;
  refuse_foreign_file(path);
  make_log_folder(options);
  try {
    write_file(path, text, 0700);
  } catch (const std::system_error& error) {
    throw ConfigError({error.what(), "--output", "give the name of a file in a folder that you can write to"});
  }
}

int submit_script(const SlurmOptions& options) {
  const auto sbatch = output_of({"sbatch", "--parsable", options.output}, std::chrono::minutes(2));
  if (!sbatch)
    throw ConfigError({"there is no sbatch here, or it does not respond", "--submit",
                       fmt::format("run on the cluster's login node: sbatch {}", shell_quoted(options.output))});
  const std::string job_id = sbatch->out.substr(0, sbatch->out.find_first_of(";\n"));  // JOB or JOB;CLUSTER
  if (sbatch->exit_code != 0 || !parse_int64(job_id)) {
    fmt::print(stderr, "braid: sbatch did not accept {}:\n{}{}", options.output, sbatch->out, sbatch->err);
    return 1;
  }
  fmt::print(stderr, "{}", sbatch->err);
  fmt::print("submitted job {0}\n  {1} launch status {0}\n  {1} launch tail {0}\n  {1} doctor {2}\n", job_id,
             called_as(), shell_quoted(log_stem(options) + job_id + ".log"));
  return 0;
}

}  // namespace braid
