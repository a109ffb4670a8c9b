// Where a rank's host time goes: into operators of ATen, into communication, or into the rest, which is Braid's own
// code and the autograd engine. Measured only when asked, since watching every operator costs time too.
#pragma once

#include <memory>

namespace braid {

class Progress;

struct HostTimes {
  double operators_ms = 0, communication_ms = 0, own_ms = 0;
};

class HostTime {
 public:
  // Watches the calling thread, the threads on which its backward runs, and the communication that `progress` is told
  // of, until it is destroyed there.
  explicit HostTime(Progress& progress);
  ~HostTime();

  HostTimes take();  // since the last call

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
