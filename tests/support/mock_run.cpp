// A training run without a model, to test a run's output and how it stops. Started directly, it becomes mock_launcher,
// which starts it as ranks: those do not need libtorch.
//   mock_run RANKS ITERATIONS MILLISECONDS [KIND [GRACE_S]]
// KIND: obedient (ends after the iteration in which it is asked to), late (starts when it has been asked to end),
// stubborn (never ends), failing (rank 1 fails when it is asked to end).
#include <signal.h>
#include <unistd.h>
#include "base/process.h"
#include "comm/control_line.h"
#include "comm/world_spec.h"
#include "log/run_log.h"
#include "train/stop_request.h"

namespace {

using namespace braid;

constexpr int kLogInterval = 10;

struct Options {
  int iterations = 1;
  std::chrono::milliseconds iteration_time{};
  std::string kind = "obedient";
};

PhaseReport mock_phases(bool is_encoder, double ms) {
  PhaseReport report;
  report.phase_ms = is_encoder
                        ? std::array{0.1 * ms, 0.2 * ms, 0.6 * ms, 0., 0., 0.05 * ms, 0.03 * ms, 0.02 * ms}
                        : std::array{0.3 * ms, 0.5 * ms, 0.01 * ms, 0.1 * ms, 0., 0.05 * ms, 0.03 * ms, 0.01 * ms};
  return report;
}

bool a_signal_waits() {
  sigset_t waiting;
  sigpending(&waiting);
  const auto waits = [&](int signal) { return sigismember(&waiting, signal) == 1; };
  return waits(SIGINT) || waits(SIGTERM) || waits(SIGHUP) || waits(SIGUSR1);
}

void say(const char* word) {
  fmt::print("{}\n", word);
  std::fflush(stdout);
}

void log_step(RunLog& log, const Options& options, int iteration, bool last) {
  log.add({.iteration = iteration,
           .consumed_samples = 8 * iteration,
           .learning_rate = 1e-4,
           .lm_loss = 2 + 3.0 / iteration,
           .grad_norm = 1,
           .num_zeros = 5,
           .seq_load_balancing_loss = 1,
           .num_tokens = 4096,
           .last = last},
          Moment::now());
  if (!closes_interval(kLogInterval, iteration, last)) return;
  const double ms = static_cast<double>(options.iteration_time.count());
  log.add_phases({{"images", "language", mock_phases(true, ms)}, {"language", "images", mock_phases(false, ms)}});
  log.add_memory(host_memory());
}

int run_rank(const Options& options, const WorldSpec& spec) {
  say("starting");
  while (options.kind == "late" && !a_signal_waits()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const StopRequest stop(StopRequest::Clock::now(),
                         {.rank = spec.rank,
                          .next = "saving",
                          .speaks_for_all = spec.launcher != Launcher::Local && spec.rank == 0,
                          .parent_is_launcher = spec.launcher == Launcher::Local});
  say("ready");
  std::optional<RunLog> log;
  if (spec.rank == 0)
    log.emplace(LogConfig{.log_interval = kLogInterval,
                          .tensorboard_dir = process_env()("BRAID_TEST_TENSORBOARD_DIR").value_or("")},
                RunFacts{.iterations = options.iterations,
                         .global_batch = 8,
                         .ranks = spec.size,
                         .flops_per_iteration = 1e12,
                         .under_braid_launcher = spec.launcher == Launcher::Local},
                Moment::now());
  StopReason reason = StopReason::None;
  for (int iteration = 1; iteration <= options.iterations && reason == StopReason::None; ++iteration) {
    std::this_thread::sleep_for(options.iteration_time);
    if (options.kind != "stubborn") reason = stop.wanted({}, iteration);
    if (options.kind == "failing" && spec.rank == 1 && reason != StopReason::None) return 3;
    if (log) log_step(*log, options, iteration, iteration == options.iterations || reason != StopReason::None);
  }
  if (log) log->finish(text_of(reason, {}));
  const int signal = interrupting_signal(reason);
  if (spec.launcher != Launcher::Local) return signal ? 128 + signal : 0;
  if (signal) RunLog::print_to_stdout(to_control_line(EndedBySignal{signal}));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const auto spec = world_spec_from(process_env());
  if (!spec) {
    const std::string launcher = (std::filesystem::path(own_executable()).parent_path() / "mock_launcher").string();
    std::vector<std::string> command = {launcher, "mock_run", "separate", argv[1], argc > 5 ? argv[5] : "60", ""};
    command.insert(command.end(), argv + 1, argv + argc);
    replace_process(command);
  }
  const Options options = {.iterations = std::atoi(argv[2]),
                           .iteration_time = std::chrono::milliseconds(std::atoi(argv[3])),
                           .kind = argc > 4 ? argv[4] : "obedient"};
  return run_rank(options, *spec);
}
