#include "train/stop_request.h"

#include <atomic>

namespace braid {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1};

// Signal dispositions belong to the process, so these do too.
std::atomic<bool> exists = false, got_int = false, got_term = false, got_usr1 = false;
static_assert(std::atomic<bool>::is_always_lock_free, "the handler may not wait for a lock");

extern "C" void on_stop_signal(int signal) {
  (signal == SIGINT ? got_int : signal == SIGTERM ? got_term : got_usr1) = true;
}

}  // namespace

void describe(Fields& f, StopConfig& c) {
  f.field("exit_duration_in_mins", c.exit_duration_in_mins, "end after this many minutes");
  f.field("exit_interval", c.exit_interval, "end after the first iteration divisible by this");
}

std::vector<Problem> validate(const StopConfig& config) {
  std::vector<Problem> problems;
  const auto refuse = [&](const char* key, double value) {
    problems.push_back({fmt::format("{}={} should be greater than 0", key, value), key, "leave it out for no limit"});
  };
  if (config.exit_duration_in_mins && !(*config.exit_duration_in_mins > 0))
    refuse("stop.exit_duration_in_mins", *config.exit_duration_in_mins);
  if (config.exit_interval && *config.exit_interval <= 0) refuse("stop.exit_interval", *config.exit_interval);
  return problems;
}

std::string text_of(StopReason reason, const StopConfig& config) {
  switch (reason) {
    case StopReason::None:
      return "all iterations done";
    case StopReason::ExitInterval:
      return fmt::format("exit_interval={} reached", config.exit_interval.value_or(0));
    case StopReason::ExitDuration:
      return fmt::format("exit_duration_in_mins={} reached", config.exit_duration_in_mins.value_or(0));
    case StopReason::SigUsr1:
      return "SIGUSR1";
    case StopReason::SigTerm:
      return "SIGTERM";
    case StopReason::SigInt:
      return "SIGINT (Ctrl-C)";
  }
  return "unknown";
}

StopRequest::StopRequest(Clock::time_point start) : start_(start) {
  BRAID_CHECK(!exists.exchange(true), "there is a StopRequest already");
  got_int = got_term = got_usr1 = false;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // whatever the rank is in goes on
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &old_actions_[i]);
    // Slurm scripts ignore SIGUSR1 to keep other programs from dying of it; who ignores the others means us.
    if (old_actions_[i].sa_handler != SIG_IGN || kSignals[i] == SIGUSR1) sigaction(kSignals[i], &action, nullptr);
  }
  sigset_t taken;
  sigemptyset(&taken);
  for (int signal : kSignals) sigaddset(&taken, signal);
  pthread_sigmask(SIG_UNBLOCK, &taken, &old_mask_);  // what was held back until now comes here
}

StopRequest::~StopRequest() {
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_actions_[i], nullptr);
  exists = false;
}

StopReason StopRequest::wanted(const StopConfig& config, std::int64_t iteration, Clock::time_point now) const {
  if (got_int) return StopReason::SigInt;
  if (got_term) return StopReason::SigTerm;
  if (got_usr1) return StopReason::SigUsr1;
  const std::chrono::duration<double, std::ratio<60>> minutes = now - start_;
  if (config.exit_duration_in_mins && minutes.count() >= *config.exit_duration_in_mins) return StopReason::ExitDuration;
  if (config.exit_interval && iteration % *config.exit_interval == 0) return StopReason::ExitInterval;
  return StopReason::None;
}

}  // namespace braid
