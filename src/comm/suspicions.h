// Failures that are not the root cause yet, since a better explanation may follow: a lost connection waits for the
// parent process to report how the rank ended, and a failure that another rank probably caused waits for news of that
// rank. Pure: time is an argument.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

namespace braid {

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
