#include "train/stop_request.h"
#include <unistd.h>
#include "base/process.h"

namespace braid {
namespace {

struct StopSignal {
  int number;
  StopReason reason;
  const char* name;
};
// More informative reasons are first.
constexpr std::array kSignals = {StopSignal{SIGINT, StopReason::SigInt, "SIGINT (Ctrl-C)"},
                                 StopSignal{SIGTERM, StopReason::SigTerm, "SIGTERM"},
                                 StopSignal{SIGHUP, StopReason::SigHup, "SIGHUP (terminal closed)"},
                                 StopSignal{SIGUSR1, StopReason::SigUsr1, "SIGUSR1"}};

// Global, because signal dispositions belong to the process.
std::atomic<bool> exists = false;
std::array<std::atomic<bool>, kSignals.size()> got{};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler must not wait for a lock");
std::array<std::string, kSignals.size()> texts;  // changed only while no handler is installed
std::vector<pid_t> launchers;                    // the same; processes that send signals to all ranks
bool speaks_for_all = false;

// The kernel signals every process of a terminal; a launcher in another container has no pid here.
bool went_to_all(const siginfo_t& info) {
  return info.si_code > 0 || info.si_pid == 0 || std::ranges::find(launchers, info.si_pid) != launchers.end();
}

extern "C" void on_stop_signal(int signal, siginfo_t* info, void*) {
  std::size_t i = 0;
  while (kSignals[i].number != signal) ++i;
  if (got[i].exchange(true) || texts[i].empty()) return;
  if (went_to_all(*info) && !speaks_for_all) return;
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, texts[i].data(), texts[i].size());
  errno = error;
}

}  // namespace

void describe(Fields& f, StopConfig& c) {
  f.field("exit_duration_in_mins", c.exit_duration_in_mins, "end after this many minutes");
  f.field("exit_interval", c.exit_interval, "end after the first iteration divisible by this");
}

std::vector<Problem> validate(const StopConfig& config) {
  std::vector<Problem> problems;
  const auto refuse = [&](const char* key, double value) {
    problems.push_back({fmt::format("{}={} must be greater than 0", key, value), key, "leave it out for no limit"});
  };
  if (config.exit_duration_in_mins && !(*config.exit_duration_in_mins > 0))
    refuse("stop.exit_duration_in_mins", *config.exit_duration_in_mins);
  if (config.exit_interval && *config.exit_interval <= 0) refuse("stop.exit_interval", *config.exit_interval);
  return problems;
}

std::string text_of(StopReason reason, const StopConfig& config) {
  for (const StopSignal& signal : kSignals)
    if (signal.reason == reason) return signal.name;
  if (reason == StopReason::ExitInterval)
    return fmt::format("exit_interval={} reached", config.exit_interval.value_or(0));
  if (reason == StopReason::ExitDuration)
    return fmt::format("exit_duration_in_mins={} reached", config.exit_duration_in_mins.value_or(0));
  return "all iterations done";
}

StopRequest::StopRequest(Clock::time_point start, const StopNotice& notice) : start_(start) {
  BRAID_CHECK(!exists.exchange(true), "a StopRequest already exists");
  static_assert(std::tuple_size_v<decltype(old_actions_)> == kSignals.size());
  speaks_for_all = notice.speaks_for_all;
  launchers = notice.parent_is_launcher ? std::vector<pid_t>{getppid()} : ancestors_of_this_process();
  struct sigaction action {};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;  // system calls in progress are restarted
  sigset_t taken;
  sigemptyset(&taken);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    const auto& [number, reason, name] = kSignals[i];
    got[i] = false;
    texts[i] = notice.next.empty() ? "" : fmt::format("braid: rank {} got {}: {}\n", notice.rank, name, notice.next);
    sigaction(number, nullptr, &old_actions_[i]);
    // Slurm scripts ignore SIGUSR1 so that it does not kill other programs, but Braid must still handle it. A user who
    // ignores one of the other signals wants Braid to ignore it too.
    if (old_actions_[i].sa_handler != SIG_IGN || number == SIGUSR1) sigaction(number, &action, nullptr);
    sigaddset(&taken, number);
  }
  pthread_sigmask(SIG_UNBLOCK, &taken, &old_mask_);  // delivers signals that were blocked until now
}

StopRequest::~StopRequest() {
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i].number, &old_actions_[i], nullptr);
  exists = false;
}

bool StopRequest::asked() const {
  return std::ranges::any_of(got, [](const auto& one) { return one.load(); });
}

StopReason StopRequest::wanted(const StopConfig& config, std::int64_t iteration, Clock::time_point now) const {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (got[i]) return kSignals[i].reason;
  const std::chrono::duration<double, std::ratio<60>> minutes = now - start_;
  if (config.exit_duration_in_mins && minutes.count() >= *config.exit_duration_in_mins) return StopReason::ExitDuration;
  if (config.exit_interval && iteration % *config.exit_interval == 0) return StopReason::ExitInterval;
  return StopReason::None;
}

}  // namespace braid
