// Failures that are not the root cause yet, since a better explanation may follow: a lost connection waits for the word
// of the process's parent, and what is likely to be another rank's doing waits for news of that rank. Pure: time comes
// in.
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
  bool consequence = false;  // another rank's failure is probably behind it
};

class Suspicions {
 public:
  using Clock = std::chrono::steady_clock;

  // How long the two kinds wait.
  Suspicions(std::chrono::milliseconds for_verdict, std::chrono::milliseconds for_origin)
      : for_verdict_(for_verdict), for_origin_(for_origin) {}

  // A rank that is suspected already stays as it is, except that a lost connection may turn out to be a consequence.
  void add(Suspicion suspicion);

  // When the rank's connection was lost, where that is all that is known of it.
  std::optional<Clock::time_point> lost_at(int rank) const;
  // Another rank was gone before: then what `rank` says of itself at `time` is a consequence.
  bool another_lost_before(int rank, Clock::time_point time) const;

  // The most likely root cause once it has waited long enough; `final`: nothing more will come.
  std::optional<Suspicion> due(Clock::time_point now, bool final) const;

 private:
  const std::chrono::milliseconds for_verdict_, for_origin_;
  std::map<int, Suspicion> by_rank_;
};

}  // namespace braid
