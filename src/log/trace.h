// A timeline of each rank for Perfetto (ui.perfetto.dev) or chrome://tracing: one file per rank.
//
// The files are in the JSON array format, not the object format with "traceEvents": its closing bracket is optional, so
// even a file whose last write was cut short can be opened. Each flush writes that bracket too, and the next one
// overwrites it: between flushes the file is valid JSON. Spans are complete events (ph X), written when they end; a
// span that is open when the process dies is not in the file.
//
// Timestamps are microseconds since 1970, from the steady clock, set once from the wall clock: adjusting the wall clock
// during a run does not distort a file, and files of several ranks align as well as the clocks of their hosts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace braid {

class Trace {
 public:
  struct Arg {
    const char* name;
    std::int64_t value;
  };

  class Span {
   private:
    friend class Trace;
    struct Open;
    struct Close {
      void operator()(Open* open) const noexcept;
    };
    std::unique_ptr<Open, Close> open_;
  };

  // Disabled: spans cost a test of one pointer.
  Trace();

  // Writes `folder`/trace_rank_00003.json, replacing an earlier run's file. `coordinates` describes the rank's
  // coordinates, e.g. "language tp 0 dp 1"; it becomes the name of the rank's row.
  Trace(const std::string& folder, int global_rank, const std::string& coordinates);
  Trace(Trace&&) noexcept;
  ~Trace();  // flushes; must outlive its spans

  bool enabled() const { return writer_ != nullptr; }

  // Spans of one track must nest, as those of one thread do; another thread needs its own track.
  static constexpr int kMainTrack = 0;
  int add_track(const std::string& name);

  // `auto span = trace.span("language forward", {{"microbatch", 3}});` lasts until the end of the scope.
  [[nodiscard]] Span span(std::string_view name, std::initializer_list<Arg> args = {}, int track = kMainTrack) {
    return enabled() ? open_span(name, args, track) : Span();
  }

  // Values at this moment, drawn as stacked curves.
  void counter(std::string_view name, std::initializer_list<Arg> values);

  void flush();
  bool lost_output() const;  // writing failed at some point; stderr has the error

 private:
  class Writer;
  Span open_span(std::string_view name, std::initializer_list<Arg> args, int track);
  std::unique_ptr<Writer> writer_;
};

}  // namespace braid
