// Finds the rank that causes a hang: follows "waits for" from a stuck rank to the one that keeps the others waiting.
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

}  // namespace braid
