// What a rank did when, for Perfetto (ui.perfetto.dev) or chrome://tracing: one file per rank.
//
// The files are in the JSON array format, not the object format with "traceEvents": its closing bracket is optional, so
// even a file whose last write was cut short opens. Each flush writes that bracket too, and the next one overwrites it:
// between flushes the file is plain valid JSON. Spans are complete events (ph X), written when they end; one that is
// open when the process dies is not in the file.
//
// Timestamps are microseconds since 1970, from the steady clock set once to the wall clock: an adjustment of the wall
// clock during a run does not bend a file, and files of several ranks line up as well as the clocks of their hosts.
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

  // Writes `folder`/trace_rank_00003.json, in place of what an earlier run left there. `place` is what the rank is, as
  // in "language tp 0 dp 1"; it becomes the name of the rank's row.
  Trace(const std::string& folder, int global_rank, const std::string& place);
  Trace(Trace&&) noexcept;
  ~Trace();  // flushes; must outlive its spans

  bool enabled() const { return writer_ != nullptr; }

  // Spans of one track must nest, which those of one thread do; another thread takes a track of its own.
  static constexpr int kMainTrack = 0;
  int add_track(const std::string& name);

  // `auto span = trace.span("language forward", {{"microbatch", 3}});` lasts until the end of the scope.
  [[nodiscard]] Span span(std::string_view name, std::initializer_list<Arg> args = {}, int track = kMainTrack) {
    return enabled() ? open_span(name, args, track) : Span();
  }

  // Values at this moment, drawn as stacked curves.
  void counter(std::string_view name, std::initializer_list<Arg> values);

  void flush();
  bool lost_output() const;  // it could not be written to its end, which stderr has been told

 private:
  class Writer;
  Span open_span(std::string_view name, std::initializer_list<Arg> args, int track);
  std::unique_ptr<Writer> writer_;
};

}  // namespace braid
