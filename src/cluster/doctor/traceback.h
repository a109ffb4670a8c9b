// Puts Python tracebacks together line by line, several at a time: in a merged log those of different ranks interleave.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/doctor/findings.h"
#include "cluster/doctor/line_marks.h"

namespace braid {

class TracebackAssembler {
 public:
  bool any_open() const { return !open_.empty(); }

  void begin(int writer, const Place& place);  // one that this writer has not ended is forgotten
  bool is_open(int writer) const { return open_.count(writer) > 0; }

  // Some loggers write their prefix only before the first of many lines. Where a frame stands without one, it is of the
  // traceback that has just begun and has none yet: from now on that is this writer's. Returns who it was before.
  std::optional<int> adopt(int writer, std::string_view body, std::uint64_t line);

  struct Result {
    bool taken = false;                // the line is part of a traceback
    std::optional<Traceback> ended{};  // and the last one of it
  };
  Result feed(int writer, std::string_view body, std::uint64_t line);

  // Those, by writer, that the log ends in; a launcher may have said a few words after them.
  std::map<int, Traceback> unfinished() const;

 private:
  struct Open {
    Traceback traceback;
    std::size_t indent = 0;              // of its File lines; the exception stands two before
    int lines = 0, lines_of_others = 0;  // the latter since its last own one
  };
  std::map<int, Open> open_;  // by writer
};

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
