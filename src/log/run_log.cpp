#include "log/run_log.h"
#include <signal.h>
#include <unistd.h>
#include "base/strings.h"

namespace braid {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenProgress{100};
constexpr double kWeightOfNewest = 0.1;

// Turns a failure to write a path into a ConfigError that names the recipe key.
template <class Make>
auto opened(const char* key, const char* kind, const Make& make) {
  try {
    return make();
  } catch (const std::exception& e) {
    throw ConfigError({e.what(), key, fmt::format("give a {} that you can write to", kind)});
  }
}

// Null if the path is empty. Makes the folder first.
template <class File>
std::unique_ptr<File> open_file(const char* key, const char* kind, const std::string& path,
                                const std::filesystem::path& folder) {
  if (path.empty()) return nullptr;
  return opened(key, kind, [&] {
    if (!folder.empty()) std::filesystem::create_directories(folder);
    return std::make_unique<File>(path);
  });
}

double ms_between(steady_clock::time_point from, steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// Seconds since 1970, rounded to a millisecond.
double unix_seconds(const Moment& moment) {
  const auto since_epoch = std::chrono::floor<std::chrono::milliseconds>(moment.wall.time_since_epoch());
  return static_cast<double>(since_epoch.count()) / 1e3;
}

double per_second(double amount, double ms) { return ms > 0 ? 1e3 * amount / ms : 0; }

}  // namespace

void describe(Fields& f, LogConfig& c) {
  f.field("interval", c.log_interval, "iterations between log lines and TensorBoard points");
  f.field("tensorboard_dir", c.tensorboard_dir, "folder for TensorBoard event files; empty: none");
  f.field("metrics_file", c.metrics_file, "file that gets one JSON line per iteration; empty: none");
  f.field("trace_dir", c.trace_dir, "folder for a timeline of each rank (Perfetto, Chrome); empty: none");
  f.field("sample_trace_dir", c.sample_trace_dir, "folder for hashes of the samples of every microbatch; empty: none");
  f.field("activation_dir", c.activation_dir, "folder for the embeddings of a start's first iterations; empty: none");
  f.field("activation_steps", c.activation_steps, "how many iterations of a start write embeddings");
  f.field("num_zeros", c.log_num_zeros, "count the zeros of the gradient");
  f.field("progress", c.progress, "draw a progress bar on a terminal");
  f.section("profile", c.profile);
}

void describe(Fields& f, ProfileConfig& c) {
  f.field("enabled", c.enabled, "record some iterations with libtorch's profiler (Kineto)");
  f.field("step_start", c.step_start, "the profile begins after this iteration");
  f.field("step_end", c.step_end, "the last iteration of the profile");
  f.field("ranks", c.ranks, "the ranks that write a profile, e.g. 0,3");
  f.field("dir", c.dir, "folder for the profiles of ranks");
}

std::vector<int> ProfileConfig::rank_list() const {
  return vector_of<int>(split(ranks, ','), [](const std::string& word) { return parse_int(word).value_or(-1); });
}

bool ProfileConfig::profiles(int global_rank) const {
  const std::vector<int> numbers = rank_list();
  return enabled && std::ranges::find(numbers, global_rank) != numbers.end();
}

std::vector<Problem> validate(const LogConfig& config) {
  std::vector<Problem> problems;
  const auto expect = [&](bool holds, std::string what, const char* where, std::string fix) {
    if (!holds) problems.push_back({std::move(what), where, std::move(fix)});
  };
  const ProfileConfig& profile = config.profile;
  const std::vector<int> ranks = profile.rank_list();
  expect(config.log_interval > 0, fmt::format("log.interval={} must be greater than 0", config.log_interval),
         "log.interval", "");
  expect(config.activation_steps > 0,
         fmt::format("log.activation_steps={} must be greater than 0", config.activation_steps), "log.activation_steps",
         "leave log.activation_dir empty to write none");
  if (!profile.enabled) return problems;
  expect(profile.step_start >= 0, fmt::format("step_start={} must be at least 0", profile.step_start),
         "log.profile.step_start", "");
  expect(profile.step_end > profile.step_start,
         fmt::format("step_end={} must be greater than step_start={}", profile.step_end, profile.step_start),
         "log.profile.step_end", fmt::format("use step_end={}", profile.step_start + 2));
  expect(std::ranges::all_of(ranks, [](int rank) { return rank >= 0; }),
         fmt::format("ranks={} must be numbers of ranks with commas between them", profile.ranks), "log.profile.ranks",
         "use ranks=0,3, for example");
  expect(!profile.dir.empty(), "dir must be the name of a folder", "log.profile.dir", "use dir=profiles");
  return problems;
}

std::vector<Problem> profile_problems(const ProfileConfig& config, std::int64_t iterations, std::int64_t ranks) {
  if (!config.enabled) return {};
  std::vector<Problem> problems;
  if (config.step_start >= iterations)
    problems.push_back({fmt::format("step_start={}, but the run ends with iteration {}", config.step_start, iterations),
                        "log.profile.step_start",
                        fmt::format("use step_start={}", std::max<std::int64_t>(0, iterations - 2))});
  const std::vector<int> wanted = config.rank_list();
  if (std::ranges::any_of(wanted, [&](int rank) { return rank >= ranks; }))
    problems.push_back({fmt::format("ranks={}, but the last rank is {}", config.ranks, ranks - 1), "log.profile.ranks",
                        "use ranks=0"});
  return problems;
}

Trace open_trace(const LogConfig& config, int global_rank, const std::string& coordinates) {
  if (config.trace_dir.empty()) return {};
  return opened("log.trace_dir", "folder", [&] {
    // Removes an earlier run's file, which would not match the traces of the ranks if this run is killed.
    if (global_rank == 0) std::filesystem::remove(merged_trace_path(config.trace_dir));
    return Trace(config.trace_dir, global_rank, coordinates);
  });
}

void RunLog::print_to_stdout(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  // The reader of the log is gone. Ranks with a network connection get no SIGPIPE (comm/failure_board.h,
  // BrokenPipeGuard), so they are asked to stop cleanly.
  if (!written && errno == EPIPE) kill(getpid(), SIGTERM);
}

RunLog::RunLog(const LogConfig& config, const RunFacts& facts, const Moment& start, Print print)
    : config_(config), facts_(facts), print_(std::move(print)), start_(start),
      iterations_(facts, config.log_interval, start),
      events_(open_file<EventFile>("log.tensorboard_dir", "folder", config.tensorboard_dir, config.tensorboard_dir)),
      metrics_(open_file<MetricsFile>("log.metrics_file", "file", config.metrics_file,
                                      std::filesystem::path(config.metrics_file).parent_path())),
      iteration_start_(start.steady), last_result_(start.steady) {
  summary_.last_iteration = facts.done_before;
}

RunLog::~RunLog() = default;

// Other launchers would not remove the control lines.
void RunLog::note(const std::string& text, bool under_braid_launcher, const Print& print) {
  print(under_braid_launcher ? to_control_lines({text}) : text);
}

void RunLog::note_of_rank(const std::string& line, int rank, bool under_braid_launcher, const Print& print) {
  print(under_braid_launcher ? line + "\n" : fmt::format("rank {}: {}\n", rank, line));
}

void RunLog::say(const std::string& text) { note(text, facts_.under_braid_launcher, print_); }

template <class File, class Act>
void RunLog::write(std::unique_ptr<File>& file, const Act& act) {
  if (!file) return;
  try {
    act(*file);
  } catch (const std::exception& e) {
    say(fmt::format("braid: {}; the run continues without it\n", e.what()));
    file.reset();
    lost_output_ = true;
  }
}

void RunLog::add(const StepRecord& step, const Moment& now) {
  const double iteration_ms = ms_between(std::exchange(iteration_start_, now.steady), now.steady);
  last_result_ = now.steady;
  count(step);
  write(metrics_, [&](MetricsFile& file) {
    file.add(step, {.iteration_ms = iteration_ms,
                    .tokens_per_s = per_second(step.num_tokens, iteration_ms),
                    .time = unix_seconds(now),
                    .started = unix_seconds(start_)});
  });
  add_line(iterations_.add(step, now));
  show_progress(step, iteration_ms, now);
}

void RunLog::add_line(const std::optional<IterationRecord>& record) {
  if (!record) return;
  say(to_line(*record) + "\n");
  write(events_, [&](EventFile& file) {
    const StepRecord& step = record->step;
    const auto add = [&](const std::string& tag, const auto& value) {
      if (!value) return;
      file.add_scalar(tag, static_cast<double>(*value), step.iteration);
      file.add_scalar(tag + " vs samples", static_cast<double>(*value), step.consumed_samples);
    };
    add("lm loss", step.lm_loss);
    add("seq_load_balancing_loss", step.seq_load_balancing_loss);
    add("learning-rate", step.learning_rate);
    add("batch-size", std::optional(record->global_batch));
    add("loss-scale", std::optional(step.loss_scale));
    add("grad-norm", step.grad_norm);
    add("num-zeros", step.num_zeros);
    add("iteration-time-ms", std::optional(record->elapsed_ms));
    add("throughput", record->tflops_per_device);
    add(record->device == "GPU" ? "tokens-per-second-per-gpu" : "tokens-per-second-per-rank",
        record->tokens_per_device);
    file.flush();
  });
}

void RunLog::count(const StepRecord& step) {
  ++summary_.iterations_done;
  ++iterations_without_phases_;
  summary_.last_iteration = step.iteration;
  summary_.tokens += step.num_tokens;
  if (step.skipped) ++summary_.skipped_iterations;
  if (!step.lm_loss) return;
  if (!std::isfinite(*step.lm_loss)) ++summary_.nan_iterations;
  if (!summary_.first_loss) summary_.first_loss = step.lm_loss;
  summary_.last_loss = step.lm_loss;
}

void RunLog::leave_out_time_until(const Moment& now) {
  iterations_.leave_out(now.steady - iteration_start_);
  iteration_start_ = now.steady;
}

void RunLog::show_evaluation(bool runs) {
  if (!progress_) return;
  progress_->evaluates = runs;
  print_(to_control_line(*progress_));
}

void RunLog::add_evaluation(const EvaluationRecord& record, const Moment& now) {
  say(to_lines(record));
  last_result_ = now.steady;
  write(events_, [&](EventFile& file) {
    file.add_scalar("lm loss validation", record.lm_loss, record.iteration);
    file.add_scalar("lm loss validation vs samples", record.lm_loss, record.consumed_samples);
    file.add_scalar("lm loss validation ppl", perplexity(record.lm_loss), record.iteration);
    file.add_scalar("right tokens validation", record.right_tokens, record.iteration);
    file.add_scalar("right answers validation", record.right_answers, record.iteration);
    file.flush();
  });
}

void RunLog::show_progress(const StepRecord& step, double iteration_ms, const Moment& now) {
  if (!config_.progress || !facts_.under_braid_launcher) return;
  if (!pace_) pace_ = Pace{iteration_ms, step.num_tokens};
  pace_->ms += kWeightOfNewest * (iteration_ms - pace_->ms);
  pace_->tokens += kWeightOfNewest * (step.num_tokens - pace_->tokens);
  progress_ = {.iteration = step.iteration,
               .iterations = facts_.iterations,
               .lm_loss = step.lm_loss,
               .tokens_per_s = per_second(pace_->tokens, pace_->ms),
               .seconds_left = 1e-3 * pace_->ms * static_cast<double>(facts_.iterations - step.iteration)};
  if (last_shown_ && now.steady - *last_shown_ < kBetweenProgress && !step.last) return;
  last_shown_ = now.steady;
  print_(to_control_line(*progress_));
}

void RunLog::add_phases(const std::vector<ModulePhases>& phases) {
  const auto iterations = static_cast<double>(std::exchange(iterations_without_phases_, 0));
  if (summary_.phases.empty())
    for (const ModulePhases& row : phases) summary_.phases.push_back({row.module, row.waits_for});
  for (std::size_t row = 0; row < phases.size(); ++row) {  // sums over the iterations of which these are means
    ModulePhases& sums = summary_.phases.at(row);
    for (std::size_t i = 0; i < kPhases; ++i) sums.mean.phase_ms[i] += iterations * phases[row].mean.phase_ms[i];
    for (std::size_t i = 0; i < kCommKinds; ++i) {
      const CommTotals& mean = phases[row].communication[i];
      sums.communication[i] += {iterations * mean.bytes, iterations * mean.in_flight_ms, iterations * mean.exposed_ms};
    }
  }
  say(to_lines(phases));
  write(events_, [&](EventFile& file) {
    const auto add = [&](const char* group, const std::string& module, const char* name, double value) {
      file.add_scalar(fmt::format("{}/{}/{}", group, module, name), value, summary_.last_iteration);
    };
    for (const ModulePhases& row : phases)
      for (std::size_t i = 0; i < kPhases; ++i)
        add("time-ms", row.module, name_of(static_cast<Phase>(i)), row.mean.phase_ms[i]);
    for (const ModulePhases& row : phases)
      for (std::size_t i = 0; i < kCommKinds; ++i) {
        const CommTotals& totals = row.communication[i];
        if (totals.in_flight_ms == 0) continue;
        add("comm-ms", row.module, name_of(static_cast<CommKind>(i)), totals.in_flight_ms);
        add("comm-exposed-ms", row.module, name_of(static_cast<CommKind>(i)), totals.exposed_ms);
      }
    file.flush();
  });
}

void RunLog::add_memory(const MemoryUse& fullest) {
  // Memory is printed once, as in Megatron, because by then a run has allocated what it needs. TensorBoard shows later
  // values.
  if (!summary_.memory)
    say(fmt::format("[maximum over {}] (after {} iterations) {}\n", counted(facts_.ranks, "rank"),
                    summary_.last_iteration, to_line(fullest)));
  summary_.memory = fullest;
  write(events_, [&](EventFile& file) {
    for (const auto& [tag, mb] : {std::pair("mem/cuda-allocated-mb", fullest.allocated_mb),
                                  {"mem/cuda-peak-mb", fullest.max_allocated_mb},
                                  {"mem/host-rss-mb", fullest.host_mb},
                                  {"mem/host-peak-mb", fullest.max_host_mb}})
      if (fullest.max_reserved_mb > 0 || std::string_view(tag).starts_with("mem/host"))
        file.add_scalar(tag, mb, summary_.last_iteration);
    file.flush();
  });
}

void RunLog::finish(const std::string& ended_by, const UnusableSamples& samples) {
  if (facts_.done_before > 0 && facts_.done_before >= facts_.iterations)
    return say(fmt::format(
        "already at iteration {}{}: nothing to do; train further with a larger --train-iters and "
        "--override-opt-param-scheduler\n",
        facts_.done_before,
        facts_.done_before == facts_.iterations ? fmt::format(" of {}", facts_.iterations)
                                                : fmt::format(", and this run ends after {}", facts_.iterations)));
  summary_.ended_by = ended_by;
  summary_.samples = samples;
  summary_.seconds = 1e-3 * ms_between(start_.steady, last_result_);
  say(to_text(summary_, facts_));
}

}  // namespace braid
