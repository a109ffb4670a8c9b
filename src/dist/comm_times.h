// What is known of a rank's communication after it has happened. No libtorch here.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace braid {

struct CommKey {
  std::string group, op;  // "language.tp", "all_gather"
  std::string purpose{};  // what only the caller knows: "bridge"; may be empty
  friend auto operator<=>(const CommKey&, const CommKey&) = default;
};

struct CommTotals {
  double bytes = 0;         // this rank's parts, as Meeting::bytes
  double in_flight_ms = 0;  // from when its inputs were ready until it was complete, peers' lateness included
  double exposed_ms = 0;    // of that time, how long compute stood still for it

  // The share of the time in flight in which the rank could compute.
  double hidden() const { return in_flight_ms > 0 ? std::max(0.0, 1 - exposed_ms / in_flight_ms) : 1; }
  CommTotals& operator+=(const CommTotals& other) {
    bytes += other.bytes;
    in_flight_ms += other.in_flight_ms;
    exposed_ms += other.exposed_ms;
    return *this;
  }
};
using CommLedger = std::map<CommKey, CommTotals>;

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
