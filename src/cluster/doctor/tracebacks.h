// Puts Python tracebacks together line by line, several at a time: in a merged log those of different ranks interleave.
#pragma once

#include "cluster/doctor/findings.h"

namespace braid {

class Tracebacks {
 public:
  explicit Tracebacks(Findings& findings) : findings_(findings) {}

  bool any_open() const { return !open_.empty() || message_; }  // then take() must see each line
  void begin(Line line);
  void next_is_not_fatal(std::uint64_t line) { not_fatal_ = line; }
  void during_handling(const LineMarks& marks);  // the next traceback was raised while the last one was handled

  // False when the line is not part of a traceback, or begins the next one.
  bool take(Line line);

  void spawned(std::string_view body, Line line);
  // Reads a whole traceback in one line, as in JSON.
  void quoted(std::string_view text, Line line);

  // Adds the tracebacks in which the file ends; to be called when it is read.
  void end();

 private:
  struct Open {
    Finding head{};          // its first line, with all that is known so far
    std::size_t indent = 0;  // of its File lines; the exception is indented by two less
    int lines = 0;
    bool is_harmless = false;
  };
  // Writers are known by their rank, their rank on the node, or a prefix that is in no table.
  void adopt(int writer, const Line& line);
  bool feed(int writer, const Line& line, std::optional<Finding>& whole);
  void ended(int writer, Finding head, Line line);
  void add(Finding finding, int writer, bool while_handling);
  void continue_message(int writer, const Line& line);

  struct Learned {
    std::string pattern;
    int writer;
    std::optional<int> rank;
  };
  bool recognise(Line& line) const;
  void learn(std::string_view prefix, std::string_view recent);

  Findings& findings_;
  std::map<int, Open> open_;  // by writer
  std::vector<Learned> learned_;
  std::optional<int> spawned_rank_;
  int spawned_by_ = 0;                   // the writer of that message
  std::optional<int> failed_elsewhere_;  // the rank that the last exception names
  std::uint64_t not_fatal_ = 0;          // the line that announces a harmless traceback
  std::set<int> handling_;               // writers

  struct OpenMessage {  // of an exception
    int writer;
    std::size_t finding;  // its place in the list
    std::uint64_t line;
  };
  std::optional<OpenMessage> message_;
};

}  // namespace braid
