// How TensorBoard itself reads event files is tested in tests/oracles/tensorboard_test.py.
#include "log/run_log.h"
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include "base/strings.h"
#include "comm/control_line.h"
#include "log/log_files.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::read_file;
using ::testing::SizeIs;
using testing::TemporaryFolder;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Moment after(int ms) {
  return {std::chrono::steady_clock::time_point(std::chrono::milliseconds(ms)),
          std::chrono::system_clock::time_point(std::chrono::milliseconds(ms))};
}

class RunLogTest : public ::testing::Test {
 protected:
  void open(const LogConfig& config, RunFacts facts) {
    log_.emplace(config, facts, after(0), [this](const std::string& text) { printed_ += text; });
  }

  // Iterations of 100 ms with 1000 tokens, whose loss is 1 / iteration.
  void run(int first, int last) {
    for (int i = first; i <= last; ++i)
      log_->add({.iteration = i, .consumed_samples = 8 * i, .lm_loss = 1.0 / i, .num_tokens = 1000}, after(100 * i));
  }

  std::vector<std::string> lines_with(const std::string& part) const {
    std::vector<std::string> found;
    for (const std::string& line : split(printed_, '\n'))
      if (line.find(part) != std::string::npos) found.push_back(line);
    return found;
  }

  std::string printed_;
  std::optional<RunLog> log_;
};

TEST_F(RunLogTest, MegatronsLineAtEachIntervalAndAtTheEnd) {
  open({.log_interval = 2}, {.iterations = 5, .global_batch = 8, .ranks = 2, .flops_per_iteration = 1e12});
  run(1, 5);
  const auto lines = lines_with("| consumed samples:");
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("iteration        2/       5 |"), HasSubstr("| lm loss: 7.500000E-01 |"),
                              HasSubstr("(TFLOP/s/GPU): 5.0 | tokens per GPU (tokens/s/GPU): 5000.0 |")));
  EXPECT_THAT(lines[2], HasSubstr("iteration        5/       5 |"));
}

TEST_F(RunLogTest, RatesOnCpusAreThoseOfRanks) {
  open({.log_interval = 2}, {.iterations = 2, .ranks = 2, .flops_per_iteration = 1e12, .device = "rank"});
  run(1, 2);
  EXPECT_THAT(printed_, AllOf(HasSubstr(" throughput per rank (TFLOP/s/rank): 5.0 | tokens per rank (tokens/s/rank): "),
                              Not(HasSubstr("GPU"))));
}

TEST_F(RunLogTest, AMetricsLineForEveryIteration) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/new/metrics.jsonl";
  open({.log_interval = 10, .metrics_file = path}, {.iterations = 100});
  run(1, 2);
  log_->add({.iteration = 3,
             .consumed_samples = 24,
             .learning_rate = 0.5,
             .lm_loss = kNan,
             .loss_scale = 2,
             .grad_norm = 3,
             .num_zeros = 4,
             .seq_load_balancing_loss = 1.5,
             .num_tokens = 1000,
             .skipped = true},
            after(450));
  const auto lines = split(read_file(path), '\n');
  ASSERT_THAT(lines, SizeIs(4));
  auto line = nlohmann::json::parse(lines[2]);
  EXPECT_EQ(line["time"].get<double>() - line["started"].get<double>(), 0.45);
  line.erase("time");
  line.erase("started");
  EXPECT_EQ(line, nlohmann::json::parse(R"({"iteration": 3, "consumed_samples": 24, "learning_rate": 0.5,
      "lm_loss": null, "loss_scale": 2.0, "grad_norm": 3.0, "num_zeros": 4, "seq_load_balancing_loss": 1.5,
      "iteration_ms": 250.0, "tokens_per_s": 4000.0, "skipped": true})"));
}

TEST_F(RunLogTest, ScalarsAreWrittenAtIntervals) {
  TemporaryFolder folder;
  open({.log_interval = 2, .tensorboard_dir = folder.path()}, {.iterations = 10, .global_batch = 8});
  const auto events = [&] { return read_file(std::filesystem::directory_iterator(folder.path())->path()); };
  run(1, 1);
  EXPECT_THAT(events(), Not(HasSubstr("lm loss")));
  log_->add({.iteration = 2,
             .consumed_samples = 16,
             .learning_rate = 1,
             .lm_loss = kNan,
             .grad_norm = 1,
             .num_zeros = 1,
             .seq_load_balancing_loss = 1},
            after(200));
  for (const char* tag : {"lm loss", "learning-rate", "grad-norm", "batch-size", "loss-scale", "num-zeros",
                          "iteration-time-ms", "seq_load_balancing_loss"})
    EXPECT_THAT(events(), AllOf(HasSubstr(tag), HasSubstr(std::string(tag) + " vs samples"))) << tag;
}

// Of two iterations of 100 ms, with 3 s of evaluation between them and 2 s of a save before them.
TEST_F(RunLogTest, EvaluationsAndSavesArePartOfNoIteration) {
  TemporaryFolder folder;
  const std::string metrics = folder.path() + "/metrics.jsonl", events = folder.path() + "/events";
  open({.log_interval = 2, .tensorboard_dir = events, .metrics_file = metrics}, {.iterations = 8, .ranks = 2});
  log_->leave_out_time_until(after(2000));
  log_->add({.iteration = 1, .num_tokens = 1000}, after(2100));
  log_->add_evaluation({.iteration = 1}, after(5000));
  log_->leave_out_time_until(after(5100));
  log_->add({.iteration = 2, .num_tokens = 1000}, after(5200));
  EXPECT_THAT(printed_, AllOf(HasSubstr("elapsed time per iteration (ms): 100.0 |"),
                              HasSubstr("tokens per GPU (tokens/s/GPU): 5000.0 |")));
  std::map<std::string, double> scalars;
  for (const ScalarEvent& event : read_events(std::filesystem::directory_iterator(events)->path()).scalars)
    scalars[event.tag] = event.value;
  EXPECT_EQ(scalars["iteration-time-ms"], 100);
  EXPECT_EQ(scalars["tokens-per-second-per-gpu"], 5000);
  for (const std::string& line : split(read_file(metrics), '\n'))
    if (!line.empty()) EXPECT_EQ(nlohmann::json::parse(line)["iteration_ms"], 100) << line;
  log_->leave_out_time_until(after(9000));  // the last save
  log_->finish("SIGTERM");
  EXPECT_THAT(printed_, HasSubstr("time per iteration  2600.0 ms\n"));
}

TEST_F(RunLogTest, PhasesAndMemoryFollowTheLine) {
  open({.log_interval = 1}, {.iterations = 10, .ranks = 3});
  run(1, 1);
  PhaseReport report;
  report.phase_ms[static_cast<std::size_t>(Phase::BridgeWait)] = 10;
  log_->add_phases({{"images", "language", report}});
  log_->add_memory({.host_mb = 5, .max_host_mb = 6});
  EXPECT_THAT(printed_,
              HasSubstr(" time (ms) | images | bridge wait (language):    10.0 (100 %) |\n"
                        "[maximum over 3 ranks] (after 1 iterations) memory (MB) | host: 5.00 | max host: 6.00\n"));
  run(2, 2);
  log_->add_memory({.allocated_mb = 1, .max_allocated_mb = 2, .reserved_mb = 3, .max_reserved_mb = 4});
  EXPECT_THAT(lines_with("memory (MB)"), SizeIs(1));  // once, as Megatron
  open({}, {.iterations = 10, .ranks = 1});
  log_->add_memory({});
  EXPECT_THAT(printed_, HasSubstr("[maximum over 1 rank] "));
}

TEST_F(RunLogTest, TheSummaryHasTheFirstAndTheLastLossThereIs) {
  open({.log_interval = 1}, {.iterations = 4});
  log_->add({.iteration = 1}, after(100));
  run(2, 3);
  log_->add({.iteration = 4, .last = true}, after(400));
  log_->finish("all iterations done");
  EXPECT_THAT(printed_, HasSubstr("lm loss             0.5000 -> 0.3333\n"));
}

TEST_F(RunLogTest, TheWholeSummary) {
  open({.log_interval = 4}, {.iterations = 100, .ranks = 2, .flops_per_iteration = 1e12});
  run(21, 23);  // resumed
  log_->add({.iteration = 24, .lm_loss = kNan, .num_tokens = 1000, .skipped = true, .last = true}, after(2400));
  PhaseReport report;
  report.phase_ms[static_cast<std::size_t>(Phase::Forward)] = 75;
  report.phase_ms[static_cast<std::size_t>(Phase::BridgeWait)] = 25;
  log_->add_phases({{"images", "language", report}});
  log_->add_memory({.max_allocated_mb = 90, .reserved_mb = 1, .max_reserved_mb = 100, .max_host_mb = 200});
  printed_.clear();
  log_->finish("SIGTERM", {.damaged = 3, .too_long = 20, .without_targets = 4, .cut = 5});
  EXPECT_EQ(printed_,
            "\n"
            "run ended              SIGTERM\n"
            "iterations             4 (now at 24 of 100)\n"
            "lm loss                0.0476 -> nan\n"
            "time per iteration     600.0 ms\n"
            "throughput             1667 tokens/s (833.3 per rank)\n"
            "compute                1.667 TFLOP/s (0.8333 per rank)\n"
            "skipped, nan           1, 1\n"
            "damaged samples        3\n"
            "too long samples       20\n"
            "cut samples            5\n"
            "without targets        4\n"
            "peak memory of a rank  100 MB GPU (90 MB in tensors), 200 MB host\n"
            "\n"
            "share of time  images\n"
            "forward        75 %\n"
            "bridge wait    25 %\n");
}

// The first interval has two iterations: 20 MB in 50 ms, 5 ms exposed. The second has one: 5 MB in 50 ms, all exposed.
TEST_F(RunLogTest, TheSummarySaysWhatWasCommunicatedAndHidden) {
  const auto phases = [](double bytes, double exposed_ms) {
    ModulePhases row = {"language", "", {}};
    row.communication[static_cast<std::size_t>(CommKind::Gradients)] = {bytes, 50, exposed_ms};
    return std::vector<ModulePhases>{row};
  };
  open({.log_interval = 2}, {.iterations = 3});
  run(1, 2);
  log_->add_phases(phases(20e6, 5));
  run(3, 3);
  log_->add_phases(phases(5e6, 50));
  printed_.clear();
  log_->finish("all iterations done");
  EXPECT_THAT(printed_, HasSubstr("\n"
                                  "communication             MB     GB/s  ms    exposed  hidden\n"
                                  "language       gradients  15.00  0.3   50.0  20.0     60 %\n"));
}

TEST(RankNotes, NameTheRankUnlessTheLauncherDoes) {
  std::string printed;
  const auto print = [&](const std::string& text) { printed += text; };
  RunLog::note_of_rank("a", 3, /*under_braid_launcher=*/true, print);
  RunLog::note_of_rank("b", 3, /*under_braid_launcher=*/false, print);
  EXPECT_EQ(printed, "a\nrank 3: b\n");
}

// Ten iterations at 80 % waiting, then one without.
TEST_F(RunLogTest, SharesOfTheSummaryAreOverTheWholeRun) {
  const auto phases = [](double wait, double other) {
    PhaseReport report;
    report.phase_ms[static_cast<std::size_t>(Phase::BridgeWait)] = wait;
    report.phase_ms[static_cast<std::size_t>(Phase::Other)] = other;
    return std::vector<ModulePhases>{{"images", "language", report}};
  };
  open({.log_interval = 10}, {.iterations = 11});
  run(1, 10);
  log_->add_phases(phases(80, 20));
  run(11, 11);
  log_->add_phases(phases(0, 600));
  log_->finish("all iterations done");
  EXPECT_THAT(lines_with("50 %"), ElementsAre("bridge wait    50 %", "other          50 %"));
}

TEST_F(RunLogTest, ARunWithoutAnIterationHasASummaryToo) {
  open({}, {.iterations = 10, .flops_per_iteration = 1e12});
  log_->finish("SIGTERM");
  EXPECT_EQ(printed_,
            "\n"
            "run ended     SIGTERM\n"
            "iterations    0 (now at 0 of 10)\n"
            "lm loss       none -> none\n"
            "skipped, nan  0, 0\n");
}

TEST_F(RunLogTest, ARunThatIsDoneAlreadySaysSo) {
  open({}, {.iterations = 100, .done_before = 100});
  log_->finish("all iterations done");
  EXPECT_EQ(printed_,
            "already at iteration 100 of 100: nothing to do; train further with a larger "
            "--train-iters and --override-opt-param-scheduler\n");
  printed_.clear();
  open({}, {.iterations = 50, .done_before = 100});
  log_->finish("all iterations done");
  EXPECT_THAT(printed_, ::testing::StartsWith("already at iteration 100, and this run ends after 50: nothing to do; "));
}

TEST_F(RunLogTest, AResumedRunWithoutAnIterationIsWhereItWas) {
  open({}, {.iterations = 100, .done_before = 40});
  log_->finish("SIGTERM");
  EXPECT_THAT(printed_, HasSubstr("iterations    0 (now at 40 of 100)\n"));
}

std::vector<ControlLine> control_lines(const std::string& text) {
  std::vector<ControlLine> lines;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) lines.push_back(parse_control_line(line).value());
  return lines;
}

TEST_F(RunLogTest, WithALauncherThatListensEverythingIsForIt) {
  open({.log_interval = 2}, {.iterations = 4, .under_braid_launcher = true});
  run(1, 2);
  const auto lines = control_lines(printed_);
  ASSERT_THAT(lines, SizeIs(3));
  const auto& first = std::get<RunProgress>(lines[0]);
  EXPECT_EQ(first.iteration, 1);
  EXPECT_EQ(first.iterations, 4);
  EXPECT_EQ(first.lm_loss, 1);
  EXPECT_DOUBLE_EQ(first.tokens_per_s, 10000);
  EXPECT_DOUBLE_EQ(first.seconds_left, 0.3);
  EXPECT_THAT(std::get<PlainText>(lines[1]).text, HasSubstr("iteration        2/       4 |"));
  EXPECT_EQ(std::get<RunProgress>(lines[2]).iteration, 2);
}

TEST_F(RunLogTest, ProgressAtMostTenTimesASecondAndAtTheEnd) {
  open({.log_interval = 1000}, {.iterations = 1000, .under_braid_launcher = true});
  for (int i = 1; i <= 25; ++i) log_->add({.iteration = i}, after(10 * i));
  log_->add({.iteration = 26, .last = true}, after(260));
  std::vector<std::int64_t> shown;
  for (const ControlLine& line : control_lines(printed_))
    if (const auto* progress = std::get_if<RunProgress>(&line)) shown.push_back(progress->iteration);
  EXPECT_THAT(shown, ElementsAre(1, 11, 21, 26));
}

TEST_F(RunLogTest, NoProgressIfDisabled) {
  open({.log_interval = 1000, .progress = false}, {.iterations = 1000, .under_braid_launcher = true});
  run(1, 1);
  open({.log_interval = 1000}, {.iterations = 1000, .under_braid_launcher = false});
  run(1, 1);
  EXPECT_EQ(printed_, "");
}

TEST_F(RunLogTest, PathsThatCannotBeWrittenAreNamedByTheirKey) {
  EXPECT_THAT(error_of([&] { open({.tensorboard_dir = "/dev/null/a"}, {}); }),
              AllOf(HasSubstr("/dev/null/a"), HasSubstr("log.tensorboard_dir"), HasSubstr("fix:")));
  EXPECT_THAT(error_of([&] { open({.metrics_file = "/dev/null/a.jsonl"}, {}); }),
              AllOf(HasSubstr("/dev/null"), HasSubstr("log.metrics_file"), HasSubstr("fix:")));
  EXPECT_THAT(error_of([&] { open({.metrics_file = "/"}, {}); }), HasSubstr("log.metrics_file"));
  EXPECT_THAT(error_of([&] { open_trace({.trace_dir = "/dev/null/a"}, 0, ""); }),
              AllOf(HasSubstr("/dev/null/a"), HasSubstr("log.trace_dir"), HasSubstr("fix:")));
}

TEST_F(RunLogTest, ATraceOnlyWhenAskedFor) {
  TemporaryFolder folder;
  EXPECT_FALSE(open_trace({}, 0, "").enabled());
  EXPECT_TRUE(open_trace({.trace_dir = folder.path()}, 3, "language").enabled());
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/trace_rank_00003.json"));
}

// The files cannot grow, as on a full disk.
TEST_F(RunLogTest, AFileThatCannotBeWrittenAnyMoreIsGivenUp) {
  TemporaryFolder folder;
  open({.log_interval = 1000, .metrics_file = folder.path() + "/metrics.jsonl"}, {.iterations = 1000});
  run(1, 1);
  EXPECT_FALSE(log_->lost_output());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {1, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  run(2, 3);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(lines_with("metrics.jsonl"),
              ElementsAre(AllOf(HasSubstr("braid: cannot write '"), HasSubstr("; the run continues without it"))));
  EXPECT_TRUE(log_->lost_output());
}

TEST_F(RunLogTest, InvalidIntervalsAreRefused) {
  EXPECT_THAT(validate(LogConfig{}), IsEmpty());
  EXPECT_EQ(validate(LogConfig{.log_interval = 0}).at(0).where, "log.interval");
}

TEST_F(RunLogTest, ProfilesOfNothingAreRefused) {
  const auto places = [](const std::vector<Problem>& problems) {
    std::vector<std::string> found;
    for (const Problem& problem : problems) found.push_back(problem.where);
    return found;
  };
  const LogConfig wrong = {.profile = {.enabled = true, .step_start = -1, .step_end = -1, .ranks = "0,x", .dir = ""}};
  EXPECT_THAT(places(validate(wrong)),
              ElementsAre("log.profile.step_start", "log.profile.step_end", "log.profile.ranks", "log.profile.dir"));
  const ProfileConfig profile = {.enabled = true, .step_start = 8, .step_end = 10, .ranks = "0,4"};
  EXPECT_THAT(profile_problems(profile, /*iterations=*/9, /*ranks=*/5), IsEmpty());
  EXPECT_THAT(places(profile_problems(profile, 8, 4)), ElementsAre("log.profile.step_start", "log.profile.ranks"));
  EXPECT_THAT(profile_problems({}, 1, 1), IsEmpty()) << "none is wanted";
}

TEST_F(RunLogTest, TheFullestRankIsAMaximumOfValues) {
  const MemoryUse memory = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(memory_of(to_values(memory)), memory);
  const MemoryUse own = host_memory();
  EXPECT_GT(own.host_mb, 1);
  EXPECT_LT(own.host_mb, 1e6);
  EXPECT_GT(own.max_host_mb, 1);
}

}  // namespace
}  // namespace braid
