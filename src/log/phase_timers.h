// Where the time of an iteration goes. At any moment a rank is in exactly one phase: a scope inside another takes the
// time from it (a bridge wait inside forward is not forward), so phases add up to the whole.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

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

// Marks moments, of which the time between may be known only later: a GPU's come with its queue of work.
class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  virtual void mark() = 0;
  // Between each mark and the next, in milliseconds; may wait for the last. The last stays, as the next interval's first.
  virtual std::vector<double> take_spans() = 0;
};

class HostClock : public PhaseClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Now = std::function<TimePoint()>;
  explicit HostClock(Now now = &std::chrono::steady_clock::now) : now_(std::move(now)) {}
  void mark() override { marks_.push_back(now_()); }
  std::vector<double> take_spans() override;

 private:
  Now now_;
  std::vector<TimePoint> marks_;
};

class PhaseTimers {
 public:
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

  explicit PhaseTimers(std::unique_ptr<PhaseClock> clock = std::make_unique<HostClock>());

  // Time outside of every scope is Phase::Other.
  [[nodiscard]] Scope measure(Phase phase) { return {*this, phase}; }

  // The mean over the iterations since the last report; starts the next interval.
  PhaseReport report(int iterations);

 private:
  void enter(Phase phase);

  std::unique_ptr<PhaseClock> clock_;
  Phase current_ = Phase::Other;
  std::vector<Phase> ended_;  // before each mark but the first
};

}  // namespace braid
