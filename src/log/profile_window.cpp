#include "log/profile_window.h"

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "log/run_log.h"

namespace braid {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities(bool on_gpu) {
  return on_gpu ? std::set{ActivityType::CPU, ActivityType::CUDA} : std::set{ActivityType::CPU};
}

}  // namespace

std::string profile_path(const std::string& folder, int global_rank) {
  return fmt::format("{}/profile_rank_{:05}.json", folder, global_rank);
}

ProfileWindow::ProfileWindow(const ProfileConfig& config, int global_rank, const c10::Device& device,
                             OnWritten on_written)
    : path_(profile_path(config.dir, global_rank)),
      first_(config.step_start + 1),
      last_(config.profiles(global_rank) ? config.step_end : config.step_start),
      on_gpu_(device.is_cuda()),
      on_written_(std::move(on_written)) {}

ProfileWindow::~ProfileWindow() {
  if (running_) profiler::disableProfiler();
}

void ProfileWindow::run(std::int64_t iteration, const std::function<void()>& step) {
  if (iteration < first_ || iteration > last_) return step();
  if (!running_) start();
  {
    at::RecordFunction guard(at::RecordScope::USER_SCOPE);
    if (guard.isActive()) guard.before(fmt::format("iteration {}", iteration));
    step();
  }
  ++profiled_;
  if (iteration == last_) finish();
}

void ProfileWindow::start() {
  using namespace torch::profiler::impl;
  // Kineto reads this when it starts. Its log reports harmless conditions, such as a missing GPU, as errors; real
  // failures are reported below.
  setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  const ProfilerConfig config(ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities(on_gpu_));
  profiler::enableProfiler(config, activities(on_gpu_));
  running_ = true;
}

void ProfileWindow::finish() {
  if (!running_) return;
  running_ = false;
  const auto result = profiler::disableProfiler();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  std::filesystem::remove(path_, error);  // the profile of an earlier run
  result->save(path_);
  lost_output_ = !std::filesystem::exists(path_, error);  // Kineto does not throw
  on_written_(lost_output_ ? fmt::format("cannot write the profile '{}'; the run continues without it", path_)
                           : fmt::format("profile of {}: {}", counted(profiled_, "iteration"), path_));
}

}  // namespace braid
