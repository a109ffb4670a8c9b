// Puts Python tracebacks together line by line, several at a time: in a merged log those of different ranks interleave.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/doctor/events/place.h"

namespace braid {

struct Traceback {
  Place begin;                       // its time is its own where the line before has one, too
  std::uint64_t frame_line = 0;      // of the innermost frame
  std::uint64_t exception_line = 0;  // 0: the log ended before it
  std::string frame;                 // the innermost one: File "...", line 3, in f
  std::string exception;             // type and message, one line
  bool checks_finite = false;        // what failed is a check whether a number is finite: "assert isfinite(loss)"
  bool in_data = false;              // went through the loading of data
  bool in_experts = false;           // through layers with experts
  bool in_saving = false;            // through the export or saving of a model
  bool in_launcher = false;          // is torchrun's own
  bool in_rendezvous = false;        // went through the first meeting of the ranks
  bool in_client = false;            // of a server that belongs to the run, say one that generates text
  bool lets_first = false;           // in a wait for one rank that prepares something for all: "main_process_first()"
};

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

// "torch.OutOfMemoryError: CUDA out of memory": the type before the colon; empty for other lines.
std::string_view exception_type(std::string_view text);

}  // namespace braid
