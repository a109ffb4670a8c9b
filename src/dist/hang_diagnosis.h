// Who is to blame when nothing moves: follows "waits for" from a stuck rank to the one that keeps the others
// waiting.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/progress.h"

namespace braid {

// A rank as the failure board last heard of it.
struct ObservedRank {
  RankStatus status;
  double silent_s = 0;    // since it was last heard of
  bool finished = false;  // it said goodbye
  std::string host{};
};

struct HangLimits {
  double progress_s = 300;  // a rank may stay where it is for this long
  double silence_s = 30;    // its monitor, which no computation holds up, may be silent for this long
};

struct HangDiagnosis {
  int culprit = 0;
  std::string message;  // what is wrong with the culprit, and who waits for it where
};

// A loop that turns several times a second and has not for this long did not run: its process was stopped (Ctrl-Z, a
// paused machine), and most likely the others with it. What it has not heard meanwhile proves nothing.
inline constexpr std::chrono::seconds kNotRunning{1};

// The words for a rank that has gone silent, the same from whoever notices.
std::string no_sign_of_life(double limit_s);

// Hosts whose ranks have all gone silent, with those ranks, when one of them is silent for longer than the limit. Not
// `own_host`: who asks can reach it.
std::map<std::string, std::vector<int>> unreachable_hosts(const std::map<int, ObservedRank>& ranks, double silence_s,
                                                          const std::string& own_host);

// Nothing while every rank moved, and was heard of, within the limits.
std::optional<HangDiagnosis> diagnose_hang(const std::map<int, ObservedRank>& ranks, const HangLimits& limits);

}  // namespace braid
