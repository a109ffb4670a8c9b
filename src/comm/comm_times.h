// Times and sizes of a rank's communication, after it has happened. No libtorch here.
#pragma once

#include <compare>

namespace braid {

struct CommKey {
  std::string group, op;  // "language.tp", "all_gather"
  std::string purpose{};  // what only the caller knows: "bridge"; may be empty
  friend auto operator<=>(const CommKey&, const CommKey&) = default;
};

// The time that lies in at least one of many intervals.
class CoveredTime {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  void add(TimePoint begin, TimePoint end) {
    intervals_.push_back({begin, end});
    if (intervals_.size() < most_) return;
    join();
    most_ = std::max(kLeast, 2 * intervals_.size());
  }
  void add(const CoveredTime& other) {
    for (const Interval& interval : other.intervals_) add(interval.begin, interval.end);
  }
  double ms() const {
    CoveredTime joined = *this;
    joined.join();
    std::chrono::duration<double, std::milli> sum{0};
    for (const Interval& interval : joined.intervals_) sum += interval.end - interval.begin;
    return sum.count();
  }

 private:
  struct Interval {
    TimePoint begin, end;
  };
  void join() {
    std::ranges::sort(intervals_, {}, &Interval::begin);
    std::vector<Interval> joined;
    for (const Interval& interval : intervals_)
      if (joined.empty() || interval.begin > joined.back().end)
        joined.push_back(interval);
      else
        joined.back().end = std::max(joined.back().end, interval.end);
    intervals_ = std::move(joined);
  }

  static constexpr std::size_t kLeast = 256;
  std::vector<Interval> intervals_;
  std::size_t most_ = kLeast;  // are joined when there are so many
};

// Operations of a rank.
struct CommUse {
  double bytes = 0;       // this rank's parts, as Meeting::bytes
  CoveredTime exposed{};  // when compute stood still for them
  // From when inputs were ready until the operation was complete, and until the rank went on if it waited. Operations
  // that are in flight together cover that time once: else a rank that waits for the first would seem to hide the
  // others.
  CoveredTime in_flight{};
  CommUse& operator+=(const CommUse& other) {
    bytes += other.bytes;
    exposed.add(other.exposed);
    in_flight.add(other.in_flight);
    return *this;
  }
};
using CommLedger = std::map<CommKey, CommUse>;

struct CommTotals {
  double bytes = 0, in_flight_ms = 0, exposed_ms = 0;

  // The share of the time in flight in which the rank could compute.
  double hidden() const { return in_flight_ms > 0 ? std::max(0.0, 1 - exposed_ms / in_flight_ms) : 1; }
  CommTotals& operator+=(const CommTotals& other) {
    bytes += other.bytes;
    in_flight_ms += other.in_flight_ms;
    exposed_ms += other.exposed_ms;
    return *this;
  }
};

// One operation, for a trace.
struct CommSpan {
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Part {
    std::string meeting;      // its name
    std::int64_t number = 0;  // of this rank's arrivals there; that of all members
    std::int64_t bytes = 0;
    std::vector<int> members{};
    int sender = -1;  // of a transfer
  };
  CommKey key;
  std::vector<Part> parts;  // one of a collective, one for each transfer of an exchange
  TimePoint begin, end;     // when it ran; on a CPU it runs from its start
  double exposed_ms = 0;
};

}  // namespace braid
