#include "log/step_clock.h"

#include <algorithm>

namespace braid {

std::int64_t DeviceTrack::open(std::string_view name, std::initializer_list<Trace::Arg> args, std::int64_t begin_mark) {
  spans_.emplace(next_, Span{std::string(name), args, begin_mark});
  return next_++;
}

void DeviceTrack::close(std::int64_t number, std::int64_t end_mark) { spans_.at(number).end_mark = end_mark; }

void DeviceTrack::pass_marks(const std::vector<double>& ms_between, Trace::TimePoint now) {
  if (ms_between.empty()) return;
  const std::int64_t before = passed_;
  passed_ += std::ssize(ms_between);
  times_[passed_] = now;
  for (std::int64_t mark = passed_ - 1; mark >= before; --mark) {
    const std::chrono::duration<double, std::milli> ms(ms_between[static_cast<std::size_t>(mark - before)]);
    const auto time = times_[mark + 1] - std::chrono::duration_cast<Trace::TimePoint::duration>(ms);
    times_.emplace(mark, time);  // keeps the previous call's time of its last mark
  }
  // The two clocks may disagree a little, but no span may end before it begins.
  for (auto mark = std::next(times_.begin()); mark != times_.end(); ++mark)
    mark->second = std::max(mark->second, std::prev(mark)->second);

  std::int64_t oldest = passed_;
  for (auto span = spans_.begin(); span != spans_.end();) {
    const auto& [name, args, begin_mark, end_mark] = span->second;
    if (end_mark == kOpen || end_mark > passed_) {
      oldest = std::min(oldest, begin_mark);
      ++span;
      continue;
    }
    trace_.add_span(name, times_.at(begin_mark), times_.at(end_mark), args, track_);
    span = spans_.erase(span);
  }
  times_.erase(times_.begin(), times_.lower_bound(oldest));
}

}  // namespace braid
