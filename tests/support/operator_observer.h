// Calls a function for every operator that libtorch runs in this thread.
#pragma once

#include <ATen/record_function.h>

namespace braid::testing {

// As long as it exists; there may be one at a time in a thread.
class OperatorObserver {
 public:
  using Observe = std::function<void(const at::RecordFunction&)>;

  explicit OperatorObserver(Observe observe) {
    current() = std::move(observe);
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          current()(function);
          return nullptr;
        }).needsInputs(true));
  }
  ~OperatorObserver() { at::removeCallback(handle_); }
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

 private:
  // libtorch takes a plain function.
  static Observe& current() {
    thread_local Observe observe;
    return observe;
  }

  at::CallbackHandle handle_;
};

}  // namespace braid::testing
