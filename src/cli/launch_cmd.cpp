// braid launch: starts and monitors runs on a cluster. Here are its commands about running jobs.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "cluster/megatron/shell_text.h"
#include "cluster/slurm/job_record.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct FollowOptions {
  std::string job, log_dir = "logs";
  int lines = 20;
  bool no_follow = false;
};

std::string one_line(const JobRecord& job) {
  std::string line = fmt::format("job {}{}: {}", job.id, job.name.empty() ? "" : fmt::format(" ({})", job.name),
                                 !job.slurm_answers  ? "Slurm does not answer"
                                 : job.state.empty() ? "ended; Slurm no longer knows its state"
                                                     : job.state);
  if (!job.reason.empty()) line += fmt::format(" ({})", job.reason);
  if (!job.run_time.empty()) line += fmt::format(", {} of {}", job.run_time, job.time_limit);
  if (!job.nodes.empty()) line += " on " + job.nodes;
  if (job.restarts) line += ", restarted " + counted(job.restarts, "time");
  return line;
}

std::string age_of(const std::string& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error) return "does not exist yet";
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() - written);
  return fmt::format("last written {} s ago", std::max<std::int64_t>(0, seconds.count()));
}

bool ended_badly(const JobRecord& job) {
  return !job.state.empty() && !is_waiting(job) && !is_running(job) && job.state != "COMPLETED";
}

void print_status(const FollowOptions& options) {
  const JobRecord job = find_job(options.job, options.log_dir);
  fmt::print("{}\n", one_line(job));
  if (job.log.empty()) return;
  fmt::print("log: {} ({})\n", job.log, age_of(job.log));
  if (const auto progress = read_progress(job.log)) fmt::print("{}\n", to_text(*progress, is_running(job)));
  if (!ended_badly(job)) return;
  const auto code = exit_code_of(job);
  fmt::print("why it ended: {} doctor {}{}\n", called_as(), shell_quoted(job.log),
             code ? fmt::format(" --exit-code {}", *code) : "");
}

// Prints the end of a file as it grows. On a terminal, the last line shows the run's progress.
class LogTail {
 public:
  LogTail(std::string path, int lines) : path_(std::move(path)), lines_(lines) {}

  const std::string& path() const { return path_; }

  void print_new() {
    std::ifstream file(path_, std::ios::binary | std::ios::ate);
    if (!file) return;
    const std::int64_t size = file.tellg();
    if (position_ < 0) position_ = begin_of_last_lines(file, size);
    if (size < position_) position_ = 0;  // the file was truncated
    if (size == position_) return;
    file.seekg(position_);
    clear_status();
    char buffer[1 << 16];
    while (file.read(buffer, sizeof buffer), file.gcount() > 0) {
      const auto count = static_cast<std::size_t>(file.gcount());
      std::fwrite(buffer, 1, count, stdout);
      position_ += file.gcount();
      at_line_start_ = buffer[count - 1] == '\n';
    }
    std::fflush(stdout);
  }

  void show_status(const std::string& status) {
    if (at_line_start_) status_.draw(status);
  }
  void clear_status() { status_.clear(); }

 private:
  std::int64_t begin_of_last_lines(std::ifstream& file, std::int64_t size) const {
    constexpr std::int64_t kBlock = 1 << 16;
    std::string block;
    int seen = 0;
    for (std::int64_t end = size; end > 0; end -= static_cast<std::int64_t>(block.size())) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - kBlock);
      block.resize(static_cast<std::size_t>(end - begin));
      file.seekg(begin);
      file.read(block.data(), static_cast<std::streamsize>(block.size()));
      for (std::int64_t at = end - 1; at >= begin; --at)  // the last line may lack its newline
        if (block[static_cast<std::size_t>(at - begin)] == '\n' && at != size - 1 && ++seen == lines_) return at + 1;
    }
    return 0;
  }

  std::string path_;
  int lines_;
  bool at_line_start_ = true;
  std::int64_t position_ = -1;  // unknown
  StatusLine status_{STDOUT_FILENO};
};

void tail(const FollowOptions& options) {
  using std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook(500), kAskSlurm(5000);
  JobRecord job = find_job(options.job, options.log_dir);
  if (job.log.empty())
    throw ConfigError({fmt::format("Slurm does not say where the log of job {} is", job.id), "command line",
                       "give --log-dir FOLDER, as at the launch"});
  fmt::print(stderr, "{}\n", one_line(job));
  LogTail log(job.log, options.lines);
  log.print_new();
  auto asked = steady_clock::now();
  while (!options.no_follow && (is_waiting(job) || is_running(job))) {
    std::this_thread::sleep_for(kLook);
    log.print_new();
    const auto progress = read_progress(log.path());
    log.show_status(is_waiting(job) ? one_line(job) : progress ? to_text(*progress) : "");
    if (steady_clock::now() - asked < kAskSlurm) continue;
    if (const auto answer = ask_slurm(options.job)) job = *answer;  // a busy Slurm may not answer
    asked = steady_clock::now();
  }
  log.print_new();
  log.clear_status();
  if (const auto progress = read_progress(log.path())) fmt::print(stderr, "{}\n", to_text(*progress, is_running(job)));
}

std::vector<Option> job_options(FollowOptions& options) {
  return {{"job", &options.job, "job id from sbatch", kRequired},
          {"--log-dir", &options.log_dir, "folder of the logs, for jobs that Slurm no longer knows", kDefaultShown}};
}

Command status_command() {
  const auto o = std::make_shared<FollowOptions>();
  return {.name = "status",
          .help = "Show a job's state, log, iteration, loss and time per iteration",
          .options = job_options(*o),
          .run = [o](Call&) { print_status(*o); }};
}

Command tail_command() {
  const auto o = std::make_shared<FollowOptions>();
  std::vector<Option> options = job_options(*o);
  options.push_back({"-n,--lines", &o->lines, "how many of the last lines to print first",
                     Rules{.check = WholeRange{1, 1 << 30}, .shows_default = true}});
  options.push_back({"--no-follow", &o->no_follow, "print the current lines and stop"});
  return {.name = "tail",
          .help = "Print the log of a job as it grows, until the job ends",
          .options = std::move(options),
          .run = [o](Call&) { tail(*o); }};
}

}  // namespace

Command launch_command() {
  return {.name = "launch",
          .help = "Start a run on a cluster or on this machine, and monitor it",
          .subcommands = {launch_slurm_command(), launch_interactive_command(), named(kLaunchLocal), status_command(),
                          tail_command()}};
}

}  // namespace braid
