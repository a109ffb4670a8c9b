#include "dist/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

namespace braid {

Progress::Scope::Scope(Progress& progress, bool meeting)
    : progress_(progress), meeting_(meeting), exceptions_(std::uncaught_exceptions()) {}

Progress::Scope::~Scope() {
  if (meeting_ && progress_.meeting_watcher_) progress_.meeting_watcher_(false);
  std::lock_guard lock(progress_.mutex_);
  if (std::uncaught_exceptions() > exceptions_ && progress_.failed_op_.empty())
    progress_.failed_op_ = progress_.joined_ops();
  progress_.ops_.pop_back();
  if (meeting_) progress_.status_.waits.clear();
  progress_.last_change_ = std::chrono::steady_clock::now();
}

Progress::Scope Progress::phase(std::string name) {
  std::lock_guard lock(mutex_);
  failed_op_.clear();
  ops_.push_back(std::move(name));
  last_change_ = std::chrono::steady_clock::now();
  return Scope(*this, false);
}

Progress::Scope Progress::meet(const std::string& op, std::vector<Meeting> meetings) {
  return wait_in(op, arrive(std::move(meetings)));
}

std::vector<Wait> Progress::arrive(std::vector<Meeting> meetings) {
  std::lock_guard lock(mutex_);
  std::vector<Wait> waits;
  for (Meeting& meeting : meetings) {
    const std::int64_t arrival = ++status_.arrivals[meeting.channel];
    waits.push_back({std::move(meeting), arrival});
  }
  return waits;
}

Progress::Scope Progress::wait_in(const std::string& op, std::vector<Wait> waits) {
  if (meeting_watcher_) meeting_watcher_(true);
  std::lock_guard lock(mutex_);
  failed_op_.clear();
  status_.waits = std::move(waits);
  const Wait& first = status_.waits.front();
  ops_.push_back(fmt::format("{} #{} on {}", op, first.arrival, first.meeting.channel));
  last_change_ = std::chrono::steady_clock::now();
  return Scope(*this, true);
}

RankStatus Progress::snapshot() const {
  std::lock_guard lock(mutex_);
  RankStatus status = status_;
  status.op = joined_ops();
  status.idle_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - last_change_).count();
  return status;
}

void Progress::forgive(std::chrono::steady_clock::duration stopped) {
  std::lock_guard lock(mutex_);
  last_change_ = std::min(last_change_ + stopped, std::chrono::steady_clock::now());
}

std::string Progress::op_at_failure() const {
  std::lock_guard lock(mutex_);
  return failed_op_.empty() ? joined_ops() : failed_op_;
}

std::string Progress::joined_ops() const { return fmt::format("{}", fmt::join(ops_, " > ")); }

}  // namespace braid
