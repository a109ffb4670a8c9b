#include "log/host_time.h"

#include <ATen/record_function.h>

#include <atomic>
#include <chrono>

#include "comm/progress.h"

namespace braid {

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

}  // namespace braid
