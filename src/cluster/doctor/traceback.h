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

  void begin(int writer, const Place& place);  // an unfinished one of this writer is forgotten
  bool is_open(int writer) const { return open_.count(writer) > 0; }

  // Some loggers write their prefix only before the first line of a message. A frame without a prefix belongs to the
  // traceback that has just begun and has no frame yet; that traceback becomes this writer's. Returns its old writer.
  std::optional<int> adopt(int writer, std::string_view body, std::uint64_t line);

  struct Result {
    bool taken = false;                // the line is part of a traceback
    std::optional<Traceback> ended{};  // and the last one of it
  };
  Result feed(int writer, std::string_view body, std::uint64_t line);

  // Tracebacks still open at the end of the log, by writer; a launcher may have written a few lines after them.
  std::map<int, Traceback> unfinished() const;

 private:
  struct Open {
    Traceback traceback;
    std::size_t indent = 0;              // of its File lines; the exception is indented by two less
    int lines = 0, lines_of_others = 0;  // lines_of_others: since its last own line
  };
  std::map<int, Open> open_;  // by writer
};

class TracebackNotes {
 public:
  bool any_open() const { return tracebacks_.any_open() || message_; }  // then take() must see each line
  void begin(const LineMarks& marks, const Place& place, const SeenLine& line);
  void next_is_not_fatal(std::uint64_t line) { not_fatal_ = line; }
  void during_handling(const LineMarks& marks);  // the next traceback was raised while the last one was handled

  // False when the line is not part of a traceback, or begins the next one.
  bool take(LineMarks marks, const SeenLine& line, Findings& findings);

  void spawned(LineMarks marks, std::string_view body, const SeenLine& line, Findings& findings);
  // Reads a whole traceback in one line, as in JSON.
  void quoted(std::string_view text, LineMarks marks, const SeenLine& line, Findings& findings);

  // Adds the tracebacks in which the file ends; to be called when it is read.
  void end(Findings& findings);

 private:
  void ended(int writer, const Traceback& traceback, LineMarks marks, const SeenLine& line, Findings& findings);

  void add(Finding finding, int writer, bool while_handling, bool is_timed, Findings& findings);
  void continue_message(int writer, const LineMarks& marks, const SeenLine& line, Findings& findings);

  // A writer that is known by a prefix that is in no table.
  struct Learned {
    std::string pattern;
    int writer;
    std::optional<int> rank;
  };
  const Learned* learned(std::string_view text, LineMarks& marks) const;
  void learn(std::string_view prefix, const Place& place, std::string_view recent);

  std::vector<Learned> learned_;
  std::map<int, int> ranks_;  // of writers that name their rank only in the first line
  std::optional<int> spawned_rank_;
  int spawned_by_ = 0;                   // the writer of that message
  std::optional<int> failed_elsewhere_;  // the rank that the last exception names
  std::uint64_t not_fatal_ = 0;          // the line that announces a harmless traceback
  std::set<std::uint64_t> ignored_;      // first lines of tracebacks that ended nothing
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
