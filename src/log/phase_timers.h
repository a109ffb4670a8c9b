// Measures the phases of an iteration. A rank is always in exactly one phase: the time of an inner scope is not counted
// for the outer one (a bridge wait inside forward is not forward), so the phases add up to the iteration.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace braid {

enum class Phase { Forward, Backward, BridgeWait, PipelineWait, DataWait, Reduce, Optimizer, Other };
inline constexpr std::size_t kPhases = 8;

const char* name_of(Phase phase);  // "bridge wait"

struct PhaseReport {
  std::array<double, kPhases> phase_ms{};  // per iteration, by Phase

  double ms(Phase phase) const { return phase_ms[static_cast<std::size_t>(phase)]; }
  double iteration_ms() const;
  double share(Phase phase) const;  // of the iteration, 0 to 1
};

// Records time marks. The time between two marks may become known later, because a GPU reaches a mark in its queue
// after the host.
class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  virtual void mark() = 0;
  // The known milliseconds between consecutive marks; with `wait`, waits until all are known. The last of these marks
  // starts the next interval.
  virtual std::vector<double> take_spans(bool wait) = 0;
  // The device that is timed, e.g. "GPU"; empty for the host.
  virtual std::string device() const { return ""; }
};

class HostClock : public PhaseClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Now = std::function<TimePoint()>;
  explicit HostClock(Now now = &std::chrono::steady_clock::now) : now_(std::move(now)) {}
  void mark() override { marks_.push_back(now_()); }
  std::vector<double> take_spans(bool wait) override;

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

  // Sums up the marks that the device has passed, so that memory does not grow with the length of an interval. Call it
  // once per iteration, just after the host has waited for the device. `wait`: waits for the last mark, too.
  void collect(bool wait = false);

  // Marks are numbered from 0; each scope makes one at its beginning and one at its end.
  std::int64_t marks() const { return marks_; }
  // `watcher` receives the milliseconds between newly collected marks, beginning at the last mark of its previous call.
  void watch_marks(std::function<void(const std::vector<double>& ms_between)> watcher) {
    watcher_ = std::move(watcher);
  }

  // The mean over the iterations since the last report; starts the next interval.
  PhaseReport report(int iterations);

 private:
  void enter(Phase phase);

  std::unique_ptr<PhaseClock> clock_;
  std::function<void(const std::vector<double>&)> watcher_;
  std::int64_t marks_ = 1;
  Phase current_ = Phase::Other;
  std::vector<Phase> ended_;  // the phase before each mark, except the first, that is not yet collected
  std::array<double, kPhases> collected_ms_{};
};

}  // namespace braid
