// Measurements with libtorch: time and memory of a device, time of the host, the profiler.
#pragma once

#include <c10/core/Device.h>
#include "log/iteration_log.h"
#include "log/step_clock.h"

namespace braid {

// Measures how long work takes on the device's current stream; on a CPU, the host's clock.
std::unique_ptr<PhaseClock> make_phase_clock(const c10::Device& device);

// This process's memory on the host and, if its device is a GPU, what libtorch has allocated there.
MemoryUse memory_of_rank(const c10::Device& device);

// --- a rank's host time: ATen operators, communication, and the rest (Braid's own code, the autograd engine); only on
// request, since observing every operator takes time too

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

// --- libtorch's profiler (Kineto) for a few iterations, like Megatron's --profile: every operator and every kernel

struct ProfileConfig;

inline std::string profile_path(const std::string& folder, int global_rank) {
  return fmt::format("{}/profile_rank_{:05}.json", folder, global_rank);
}

class ProfileWindow {
 public:
  // `on_written` receives a line for the user.
  using OnWritten = std::function<void(const std::string& line)>;
  ProfileWindow(const ProfileConfig& config, int global_rank, const c10::Device& device, OnWritten on_written);
  ProfileWindow(const ProfileWindow&) = delete;
  ~ProfileWindow();  // writes nothing if a failure prevented finish()

  // Runs an iteration, and profiles it if it is in the window.
  void run(std::int64_t iteration, const std::function<void()>& step);
  void finish();  // the run ends, perhaps inside the window

  bool lost_output() const { return lost_output_; }  // the file could not be written

 private:
  void start();

  const std::string path_;
  const std::int64_t first_, last_;  // an empty range if this rank is not profiled
  const bool on_gpu_;
  const OnWritten on_written_;
  std::int64_t profiled_ = 0;  // iterations so far
  bool running_ = false, lost_output_ = false;
};

}  // namespace braid
