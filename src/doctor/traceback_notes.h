// Keeps what the tracebacks of one file tell.
#pragma once

#include <optional>
#include <set>
#include <string_view>

#include "doctor/seen_line.h"
#include "doctor/traceback.h"

namespace braid {

class TracebackNotes {
 public:
  bool any_open() const { return tracebacks_.any_open(); }
  void begin(const LineMarks& marks, const Place& place);
  void during_handling(const LineMarks& marks);  // of the last one, the next one was raised

  // False when the line is not part of a traceback, or begins the next one.
  bool take(const LineMarks& marks, const SeenLine& line, Findings& findings);

  void spawned(std::string_view body, const SeenLine& line, Findings& findings);

  // When the file is read: those that it ends in.
  void end(Findings& findings);

 private:
  void ended(int writer, const Traceback& traceback, LineMarks marks, const SeenLine& line, Findings& findings);

  std::optional<int> spawned_rank_;
  TracebackAssembler tracebacks_;
  std::set<int> handling_;  // writers
};

}  // namespace braid
