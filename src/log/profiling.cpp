#include "log/profiling.h"
#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include "base/files.h"
#include "base/strings.h"
#include "comm/progress.h"
#include "log/run_log.h"

namespace braid {
namespace {

class DeviceClock : public PhaseClock {
 public:
  explicit DeviceClock(const c10::Device& device) : device_(device) {}

  void mark() override {
    if (marks_ == events_.size()) events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[marks_++].record(at::accelerator::getCurrentStream(device_.index()));
  }

  std::vector<double> take_spans(bool wait) override {
    if (wait) events_[marks_ - 1].synchronize();
    std::size_t last = marks_ - 1;  // the last mark that the device has passed
    while (last > 0 && !events_[last].query()) --last;
    std::vector<double> spans;
    for (std::size_t i = 1; i <= last; ++i) spans.push_back(events_[i - 1].elapsedTime(events_[i]));
    std::rotate(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(last), events_.end());
    marks_ -= last;
    return spans;
  }

  std::string device() const override { return "GPU"; }

 private:
  const c10::Device device_;
  std::deque<c10::Event> events_;  // reused after each take_spans()
  std::size_t marks_ = 0;
};

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities(bool on_gpu) {
  return on_gpu ? std::set{ActivityType::CPU, ActivityType::CUDA} : std::set{ActivityType::CPU};
}

}  // namespace

std::unique_ptr<PhaseClock> make_phase_clock(const c10::Device& device) {
  if (device.is_cpu()) return std::make_unique<HostClock>();
  return std::make_unique<DeviceClock>(device);
}

MemoryUse memory_of_rank(const c10::Device& device) {
  MemoryUse memory = host_memory();
  if (device.is_cpu()) return memory;
  constexpr auto kAllPools = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto megabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024 / 1024; };
  memory.allocated_mb = megabytes(stats.allocated_bytes[kAllPools].current);
  memory.max_allocated_mb = megabytes(stats.allocated_bytes[kAllPools].peak);
  memory.reserved_mb = megabytes(stats.reserved_bytes[kAllPools].current);
  memory.max_reserved_mb = megabytes(stats.reserved_bytes[kAllPools].peak);
  return memory;
}

using Clock = std::chrono::steady_clock;

// Operators call other operators, and communication may call operators; the time is attributed to the outermost one.
struct HostTime::State {
  Progress& progress;
  at::CallbackHandle handle = 0;
  Clock::time_point last_take = Clock::now(), entered{};
  Clock::duration operators{}, communication{};
  int depth = 0;

  void enter() {
    if (depth++ == 0) entered = Clock::now();
  }
  void leave(Clock::duration& spent) {
    if (--depth == 0) spent += Clock::now() - entered;
  }

  // Ranks that run as threads each have their own state. Backward on a GPU runs on a separate thread while the rank's
  // thread waits. A process with a GPU has one rank, so that thread uses the most recently created state.
  static thread_local State* of_thread;
  static std::atomic<State*> last_made;
  static State* watched() { return of_thread ? of_thread : last_made.load(); }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
    if (State* state = watched()) state->enter();
    return nullptr;
  }
  static void end(const at::RecordFunction&, at::ObserverContext*) {
    if (State* state = watched()) state->leave(state->operators);
  }
};

thread_local HostTime::State* HostTime::State::of_thread = nullptr;
std::atomic<HostTime::State*> HostTime::State::last_made = nullptr;

HostTime::HostTime(Progress& progress) : state_(new State{progress}) {
  State::of_thread = state_.get();
  State::last_made = state_.get();
  state_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&State::begin, &State::end).scopes({at::RecordScope::FUNCTION}));
  progress.watch_meetings(
      [state = state_.get()](bool begins) { begins ? state->enter() : state->leave(state->communication); });
}

HostTime::~HostTime() {
  state_->progress.watch_meetings({});
  at::removeCallback(state_->handle);
  State::of_thread = nullptr;
  State* mine = state_.get();
  State::last_made.compare_exchange_strong(mine, nullptr);
}

HostTimes HostTime::take() {
  const auto ms = [](Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
  const Clock::time_point now = Clock::now();
  const HostTimes times = {.operators_ms = ms(state_->operators),
                           .communication_ms = ms(state_->communication),
                           .own_ms = ms(now - state_->last_take - state_->operators - state_->communication)};
  state_->last_take = now;
  state_->operators = state_->communication = {};
  return times;
}

ProfileWindow::ProfileWindow(const ProfileConfig& config, int global_rank, const c10::Device& device,
                             OnWritten on_written)
    : path_(profile_path(config.dir, global_rank)), first_(config.step_start + 1),
      last_(config.profiles(global_rank) ? config.step_end : config.step_start), on_gpu_(device.is_cuda()),
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
  fs::create_directories(fs::path(path_).parent_path(), error);
  fs::remove(path_, error);  // the profile of an earlier run
  result->save(path_);
  lost_output_ = !is_there(path_);  // Kineto does not throw
  on_written_(lost_output_ ? fmt::format("cannot write the profile '{}'; the run continues without it", path_)
                           : fmt::format("profile of {}: {}", counted(profiled_, "iteration"), path_));
}

}  // namespace braid
