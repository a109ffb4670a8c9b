// Shows when a GPU ran the scopes of a StepClock, on a track of the trace beside the host's. The times are those of the
// marks that the phase timers record in the GPU's queue, so these spans need no additional events.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "log/trace.h"

namespace braid {

class DeviceTrack {
 public:
  DeviceTrack(Trace& trace, const std::string& name) : trace_(trace), track_(trace.add_track(name)) {}

  // A span from one mark to another; returns its number.
  std::int64_t open(std::string_view name, std::initializer_list<Trace::Arg> args, std::int64_t begin_mark);
  void close(std::int64_t number, std::int64_t end_mark);

  // Takes the times between the next marks, the last of which the device has just passed. Writes the spans whose end is
  // known.
  void pass_marks(const std::vector<double>& ms_between, Trace::TimePoint now);

 private:
  static constexpr std::int64_t kOpen = -1;
  struct Span {
    std::string name;
    std::vector<Trace::Arg> args;
    std::int64_t begin_mark, end_mark = kOpen;
  };

  Trace& trace_;
  const int track_;
  std::map<std::int64_t, Span> spans_;  // not yet written, by number, outer ones first
  std::map<std::int64_t, Trace::TimePoint>
      times_;  // times of the last mark passed and of the marks at which spans_ begin
  std::int64_t next_ = 0, passed_ = 0;
};

}  // namespace braid
