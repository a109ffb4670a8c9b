#include "comm/comm_times.h"

namespace braid {

void CoveredTime::add(TimePoint begin, TimePoint end) {
  intervals_.push_back({begin, end});
  if (intervals_.size() < most_) return;
  join();
  most_ = std::max(kLeast, 2 * intervals_.size());
}

void CoveredTime::add(const CoveredTime& other) {
  for (const Interval& interval : other.intervals_) add(interval.begin, interval.end);
}

double CoveredTime::ms() const {
  CoveredTime joined = *this;
  joined.join();
  std::chrono::duration<double, std::milli> sum{0};
  for (const Interval& interval : joined.intervals_) sum += interval.end - interval.begin;
  return sum.count();
}

void CoveredTime::join() {
  std::sort(intervals_.begin(), intervals_.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> joined;
  for (const Interval& interval : intervals_)
    if (joined.empty() || interval.begin > joined.back().end)
      joined.push_back(interval);
    else
      joined.back().end = std::max(joined.back().end, interval.end);
  intervals_ = std::move(joined);
}

CommUse& CommUse::operator+=(const CommUse& other) {
  bytes += other.bytes;
  exposed.add(other.exposed);
  in_flight.add(other.in_flight);
  return *this;
}

CommTotals& CommTotals::operator+=(const CommTotals& other) {
  bytes += other.bytes;
  in_flight_ms += other.in_flight_ms;
  exposed_ms += other.exposed_ms;
  return *this;
}

}  // namespace braid
