// Puts Python tracebacks together line by line, several at a time: in a merged log those of different ranks interleave.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

struct Traceback {
  std::uint64_t begin = 0;           // the line it starts in
  std::uint64_t frame_line = 0;      // of the innermost frame
  std::uint64_t exception_line = 0;  // 0: the log ended before it
  std::string frame;                 // the innermost one: File "...", line 3, in f
  std::string exception;             // type and message, one line
  std::optional<double> time;        // a LogTime, where its first line or the one before has one
  bool in_data = false;              // went through the loading of data
  bool in_experts = false;           // through layers with experts
  bool in_saving = false;            // through the export or saving of a model
  bool in_launcher = false;          // is torchrun's own
};

class TracebackAssembler {
 public:
  bool any_open() const { return !open_.empty(); }

  void begin(int writer, std::uint64_t line,
             std::optional<double> time = {});  // one that this writer has not ended is forgotten

  struct Result {
    bool taken = false;                // the line is part of a traceback
    std::optional<Traceback> ended{};  // and the last one of it
  };
  Result feed(int writer, std::string_view body, std::uint64_t line);

  std::map<int, Traceback> unfinished() const;

 private:
  struct Open {
    Traceback traceback;
    std::size_t indent = 0;  // of its File lines; the exception stands two before
    int lines = 0;
  };
  std::map<int, Open> open_;  // by writer
};

// "torch.OutOfMemoryError: CUDA out of memory": the type before the colon; empty when the line is no such thing.
std::string_view exception_type(std::string_view text);

}  // namespace braid
