// Who is to blame when nothing moves: follows "waits for" from a stuck rank to the one that keeps the others
// waiting.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "dist/progress.h"

namespace braid {

// A rank as the failure board last heard of it.
struct ObservedRank {
  RankStatus status;
  double silent_s = 0;    // since it was last heard of
  bool finished = false;  // it said goodbye
};

struct HangDiagnosis {
  int culprit = 0;
  std::string message;  // what is wrong with the culprit, and who waits for it where
};

// The words for a rank that has gone silent, the same from whoever notices.
std::string no_sign_of_life(double limit_s);

// Nothing while every rank moved within the limit.
std::optional<HangDiagnosis> diagnose_hang(const std::map<int, ObservedRank>& ranks, double limit_s);

}  // namespace braid
