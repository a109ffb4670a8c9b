// A timeline of each rank for Perfetto (ui.perfetto.dev) or chrome://tracing: one file per rank, which
// merge_traces() joins.
//
// The files are in the JSON array format, not the object format with "traceEvents": its closing bracket is optional, so
// even a file whose last write was cut short can be opened. Each flush writes that bracket too, and the next one
// overwrites it: between flushes the file is valid JSON. Spans are complete events (ph X), written when they end, so a
// span that is open when the process dies is missing.
//
// Timestamps are microseconds since 1970, from the steady clock, set once from the wall clock: adjusting the wall clock
// during a run does not distort a file, and files of several ranks align as well as the clocks of their hosts.
#pragma once

#include <concepts>
#include "comm/comm_times.h"

namespace braid {

inline std::string trace_path(const std::string& folder, int global_rank) {
  return fmt::format("{}/trace_rank_{:05}.json", folder, global_rank);
}

class Trace {
 public:
  struct Arg {
    Arg(const char* n, std::integral auto v) : name(n), value(static_cast<std::int64_t>(v)) {}
    Arg(const char* n, double v) : name(n), value(v) {}
    const char* name;
    std::variant<std::int64_t, double> value;
  };
  using TimePoint = std::chrono::steady_clock::time_point;

  class Span {
   private:
    friend class Trace;
    struct Open;
    struct Close {
      void operator()(Open* open) const noexcept;
    };
    std::unique_ptr<Open, Close> open_;
  };

  // Disabled; a span costs only the test of a pointer.
  Trace();

  // Replaces an earlier run's trace_path(). The rank's row is named by its `coordinates`: "language tp 0 dp 1".
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

  // Adds a span that has ended, e.g. of a device. Spans of a track may be added in any order.
  void add_span(std::string_view name, TimePoint begin, TimePoint end, const std::vector<Arg>& args, int track);

  // An arrow leads from the span that surrounds the time of its Start to the one that surrounds the time of its End.
  // Both ends share an id that is unique in the run, and may be in the files of different ranks.
  enum class ArrowEnd { Start, End };
  void add_arrow(std::uint64_t id, ArrowEnd end, TimePoint time, int track);

  // Values at this moment, drawn as stacked curves.
  void counter(std::string_view name, std::initializer_list<Arg> values);

  void flush();
  std::int64_t bytes() const;  // flushed so far
  bool lost_output() const;    // writing failed at some point; stderr has the error

 private:
  struct Writer;
  Span open_span(std::string_view name, std::initializer_list<Arg> args, int track);
  std::unique_ptr<Writer> writer_;
};

// --- joining the traces of all ranks into one timeline, with bounded memory

inline std::string merged_trace_path(const std::string& folder) { return folder + "/trace.json"; }

struct MergedTraces {
  std::vector<int> ranks{};
  std::vector<int> cut{};  // ranks whose file ends inside an event because the process was killed
  std::int64_t events = 0;
};

// Joins the folder's trace_path()s, of the first `world_size` ranks if that is given, into merged_trace_path(). A file
// that was cut contributes its complete events. `bytes_read` counts progress. Throws a ConfigError if there is no
// trace.
MergedTraces merge_traces(const std::string& folder, std::optional<int> world_size = std::nullopt,
                          std::atomic<std::int64_t>* bytes_read = nullptr);

// --- a rank's communication as tracks of its trace, with arrows to the same operations of other ranks

class CommTrack {
 public:
  CommTrack(Trace& trace, int global_rank) : trace_(trace), global_rank_(global_rank) {}

  void add(std::vector<CommSpan> spans);

 private:
  // Spans of one track must not overlap, so an operation that overlaps another gets the next free track.
  struct Track {
    int number;
    CommSpan::TimePoint end;
  };
  void add_arrows(const CommSpan& span, const CommSpan::Part& part, int track);

  Trace& trace_;
  const int global_rank_;
  std::vector<Track> tracks_;
};

}  // namespace braid
