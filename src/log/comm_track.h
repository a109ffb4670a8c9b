// Writes a rank's communication as tracks of its trace, with arrows to the same operations of other ranks.
#pragma once

#include <vector>

#include "comm/comm_times.h"
#include "log/trace.h"

namespace braid {

class CommTrack {
 public:
  CommTrack(Trace& trace, int global_rank) : trace_(trace), global_rank_(global_rank) {}

  void add(std::vector<CommSpan> spans);

 private:
  // Spans of one track must not overlap, so an operation that overlaps another gets the next free track.
  struct Lane {
    int track;
    CommSpan::TimePoint end;
  };
  int track_for(const CommSpan& span);
  void add_arrows(const CommSpan& span, const CommSpan::Part& part, int track);

  Trace& trace_;
  const int global_rank_;
  std::vector<Lane> lanes_;
};

}  // namespace braid
