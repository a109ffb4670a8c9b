// The file of a Slurm script, and sbatch.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/strings.h"
#include "cli/launch_commands.h"
#include "launch/rank_process.h"
#include "launch/shell_text.h"
#include "launch/slurm_script.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

void refuse_foreign_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 3 && std::getline(file, line); ++i)
    if (line == kSlurmScriptMark) return;
  throw ConfigError({fmt::format("'{}' is there and was not made by braid launch slurm", path), "--output",
                     "give another name, or remove it"});
}

void make_log_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw ConfigError({fmt::format("cannot make the folder '{}': {}", path, error.message()), "--log-dir",
                       "give a folder that you can write to; without it Slurm ends the job without a word"});
}

struct Answer {
  int exit_code = 0;
  std::string text{};  // of both streams
};

Answer ask(const std::vector<std::string>& command) {
  FILE* pipe = ::popen((joined_quoted(command) + " 2>&1").c_str(), "r");
  if (!pipe) throw_errno(fmt::format("cannot run {}", command[0]));
  Answer answer;
  char buffer[4096];
  for (std::size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) answer.text.append(buffer, size);
  answer.exit_code = exit_code_of(::pclose(pipe));
  return answer;
}

}  // namespace

void write_script(const SlurmOptions& options, const std::string& text) {
  const std::string& path = options.output;
  refuse_foreign_file(path);
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool closed = fd >= 0 && ::close(fd) == 0;
  if (written && closed && ::rename(temporary.c_str(), path.c_str()) == 0) return make_log_folder(options.log_dir);
  ::unlink(temporary.c_str());
  throw ConfigError(
      {fmt::format("cannot write '{}'", path), "--output", "give the name of a file in a folder that is there"});
}

int submit_script(const SlurmOptions& options) {
  const Answer answer = ask({"sbatch", "--parsable", options.output});
  // JOB or JOB;CLUSTER, behind whatever it had to say.
  const std::size_t last = answer.text.rfind('\n', answer.text.size() - std::min<std::size_t>(answer.text.size(), 2));
  const std::size_t begin = last == std::string::npos ? 0 : last + 1;
  const std::string job_id = answer.text.substr(begin, answer.text.find_first_of(";\n", begin) - begin);
  if (answer.exit_code != 0 || !parse_int64(job_id)) {
    fmt::print(stderr, "braid: sbatch did not take {}:\n{}", options.output, answer.text);
    return 1;
  }
  fmt::print("{}submitted job {}\n  braid launch status {}\n  braid launch tail {}\n  braid doctor {}\n",
             answer.text.substr(0, begin), job_id, job_id, job_id, shell_quoted(log_stem(options) + job_id + ".log"));
  return 0;
}

}  // namespace braid
