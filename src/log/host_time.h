// Splits a rank's host time into ATen operators, communication, and the rest: Braid's own code and the autograd engine.
// Measured only on request, since observing every operator takes time too.
#pragma once

#include <memory>

namespace braid {

class Progress;

struct HostTimes {
  double operators_ms = 0, communication_ms = 0, own_ms = 0;
};

class HostTime {
 public:
  // Observes the calling thread, the threads on which its backward runs, and the communication reported to `progress`.
  // Must be destroyed on the same thread.
  explicit HostTime(Progress& progress);
  ~HostTime();

  HostTimes take();  // times since the last call

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
