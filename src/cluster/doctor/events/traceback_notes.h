// Keeps what the tracebacks of one file tell.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "cluster/doctor/events/seen_line.h"
#include "cluster/doctor/events/traceback.h"
#include "cluster/doctor/lines/prefix_shape.h"

namespace braid {

class TracebackNotes {
 public:
  bool any_open() const { return tracebacks_.any_open() || message_; }  // each line must be seen
  void begin(const LineMarks& marks, const Place& place, const SeenLine& line);
  void next_is_not_fatal(std::uint64_t line) { not_fatal_ = line; }
  void during_handling(const LineMarks& marks);  // of the last one, the next one was raised

  // False when the line is not part of a traceback, or begins the next one.
  bool take(LineMarks marks, const SeenLine& line, Findings& findings);

  void spawned(LineMarks marks, std::string_view body, const SeenLine& line, Findings& findings);
  // A whole traceback in one line, as JSON has it.
  void quoted(std::string_view text, LineMarks marks, const SeenLine& line, Findings& findings);

  // When the file is read: those that it ends in.
  void end(Findings& findings);

 private:
  void ended(int writer, const Traceback& traceback, LineMarks marks, const SeenLine& line, Findings& findings);

  void add(Finding finding, int writer, bool while_handling, bool is_timed, Findings& findings);
  void continue_message(int writer, const LineMarks& marks, const SeenLine& line, Findings& findings);

  // A writer known by a prefix that no table has.
  struct Learned {
    PrefixShape shape;
    int writer;
    std::optional<int> rank;
  };
  const Learned* learned(std::string_view text, LineMarks& marks) const;
  void learn(std::string_view prefix, const Place& place, std::string_view recent);

  std::vector<Learned> learned_;
  std::map<int, int> ranks_;  // of writers whose lines have their rank only in the first
  std::optional<int> spawned_rank_;
  int spawned_by_ = 0;                   // the writer that tells of it
  std::optional<int> failed_elsewhere_;  // as the last exception tells
  std::uint64_t not_fatal_ = 0;          // the line that says so
  std::set<std::uint64_t> ignored_;      // where tracebacks begin that ended nothing
  TracebackAssembler tracebacks_;
  std::set<int> handling_;  // writers

  struct OpenMessage {  // of an exception
    int writer;
    std::size_t finding;  // its place in the list
    std::uint64_t line;
    bool is_timed;  // its lines have times
  };
  std::optional<OpenMessage> message_;
};

}  // namespace braid
