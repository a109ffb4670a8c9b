// Decides which rank caused a failure. A hang: follows "waits for" from a stuck rank to the one that keeps the others
// waiting. An error: keeps reports back while a better explanation may follow. Pure: time is an argument.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/progress.h"

namespace braid {

// A rank as last reported to the failure board.
struct ObservedRank {
  RankStatus status;
  double silent_s = 0;    // since its last message
  bool finished = false;  // it sent a bye
  std::string host{};
};

struct HangLimits {
  double progress_s = 300;  // a rank may make no progress for this long
  double silence_s = 30;    // its monitor, which no computation delays, may be silent for this long
};

struct HangDiagnosis {
  int culprit = 0;
  std::string message;  // what is wrong with the culprit, and which ranks wait for it in which operation
};

// A polling loop that has not run for this long was suspended (Ctrl-Z, a paused machine), most likely together with the
// other processes. Missing messages from that time prove nothing.
inline constexpr std::chrono::seconds kNotRunning{1};

// The message for a rank that has fallen silent; the same on whichever rank notices it.
std::string no_heartbeat(double limit_s);

// Hosts whose ranks have all fallen silent, with those ranks, once one of the ranks has exceeded the limit. Never
// `own_host`, which the caller can reach.
std::map<std::string, std::vector<int>> unreachable_hosts(const std::map<int, ObservedRank>& ranks, double silence_s,
                                                          const std::string& own_host);

// Ranks whose records of a meeting differ: one of them left out an operation, or communicates another size. The culprit
// is the one that differs from most others; of two ranks, either may be. Without a majority, nothing as long as other
// members may still arrive, unless this is the `last_chance`.
std::optional<HangDiagnosis> diagnose_mismatch(const std::map<int, ObservedRank>& ranks, bool last_chance = false);

// Nothing if every rank made progress and reported within the limits.
std::optional<HangDiagnosis> diagnose_hang(const std::map<int, ObservedRank>& ranks, const HangLimits& limits);

// Failures that are not the root cause yet, since a better explanation may follow: a lost connection waits for the
// parent process to report how the rank ended, and a failure that another rank probably caused waits for news of that
// rank.
struct Suspicion {
  int rank = 0;
  std::string op, message;
  std::chrono::steady_clock::time_point since;
  bool consequence = false;  // another rank's failure probably caused it
};

class Suspicions {
 public:
  using Clock = std::chrono::steady_clock;

  // How long each of the two kinds waits.
  Suspicions(std::chrono::milliseconds for_verdict, std::chrono::milliseconds for_origin)
      : for_verdict_(for_verdict), for_origin_(for_origin) {}

  // Does not change a rank that is already suspected, except that a lost connection may turn out to be a consequence.
  void add(Suspicion suspicion);

  // When the rank's connection was lost, if nothing more is known about the rank.
  std::optional<Clock::time_point> lost_at(int rank) const;
  // Whether another rank was lost earlier: then what `rank` reports at `time` is a consequence.
  bool another_lost_before(int rank, Clock::time_point time) const;

  // The most likely root cause, once it has waited long enough. `final`: no more reports will come.
  std::optional<Suspicion> due(Clock::time_point now, bool final) const;

 private:
  const std::chrono::milliseconds for_verdict_, for_origin_;
  std::map<int, Suspicion> by_rank_;
};

}  // namespace braid
