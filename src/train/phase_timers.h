// Where the time of an iteration goes. At any moment a rank is in exactly one phase: a scope inside another takes the
// time from it (a bridge wait inside forward is not forward), so phases add up to the whole.
//
// This is time of the host: work queued on a GPU shows in the phase that waits for it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>

namespace braid {

enum class Phase { Forward, Backward, BridgeWait, PipelineWait, Reduce, Optimizer, Other };
inline constexpr std::size_t kPhases = 7;

const char* name_of(Phase phase);  // "bridge wait"

struct PhaseReport {
  std::array<double, kPhases> phase_ms{};  // per iteration, by Phase

  double ms(Phase phase) const { return phase_ms[static_cast<std::size_t>(phase)]; }
  double iteration_ms() const;
  double share(Phase phase) const;  // of the iteration, 0 to 1
};

class PhaseTimers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Now = std::function<TimePoint()>;

  class Scope {
   public:
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    friend class PhaseTimers;
    Scope(PhaseTimers& timers, Phase phase);
    PhaseTimers& timers_;
    Phase outer_;
  };

  explicit PhaseTimers(Now now = &std::chrono::steady_clock::now);

  // Time outside of every scope is Phase::Other.
  [[nodiscard]] Scope measure(Phase phase) { return {*this, phase}; }

  // The mean over the iterations since the last report; starts the next interval.
  PhaseReport report(int iterations);

 private:
  void enter(Phase phase);

  Now now_;
  Phase current_ = Phase::Other;
  TimePoint since_;
  std::array<TimePoint::duration, kPhases> spent_{};
};

}  // namespace braid
