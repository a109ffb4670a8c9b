// Runs libtorch's profiler (Kineto) for a few iterations, like Megatron's --profile. It records every operator and, on
// a GPU, every kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace c10 {
struct Device;
}

namespace braid {

struct ProfileConfig;

std::string profile_path(const std::string& folder, int global_rank);  // FOLDER/profile_rank_00003.json

class ProfileWindow {
 public:
  // `on_written` receives a line for the user.
  using OnWritten = std::function<void(const std::string& line)>;
  ProfileWindow(const ProfileConfig& config, int global_rank, const c10::Device& device, OnWritten on_written);
  ProfileWindow(const ProfileWindow&) = delete;
  ProfileWindow& operator=(const ProfileWindow&) = delete;
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
