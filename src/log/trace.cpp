#include "log/trace.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "log/append_only_file.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kEventsPerFlush = 256;

// Span names are ASCII, but even an invalid UTF-8 name must not throw in a destructor.
std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <class Args>
Json to_json(const Args& args) {
  Json values;
  for (const Trace::Arg& arg : args) std::visit([&](auto value) { values[arg.name] = value; }, arg.value);
  return values;
}

}  // namespace

struct Trace::Writer {
  std::mutex mutex{};
  AppendOnlyFile file;
  const int rank;
  std::string pending{};
  int pending_events = 0, tracks = 0;
  std::atomic<bool> given_up = false;
  const std::chrono::nanoseconds wall_at_start = std::chrono::system_clock::now().time_since_epoch();
  const SteadyClock::time_point steady_at_start = SteadyClock::now();

  ~Writer() { flush(); }

  // Whole microseconds, rounded down at both ends of a span, keep the nesting exact, and 2^53 holds them as a double.
  std::int64_t us_of(TimePoint time) const {
    return std::chrono::floor<std::chrono::microseconds>(wall_at_start + (time - steady_at_start)).count();
  }

  // Adds an event with these fields behind its kind and name.
  void add(const char* kind, std::string_view name, const Json& fields) {
    Json event = {{"ph", kind}, {"name", name}, {"pid", rank}};
    event.update(fields);
    const std::string text = to_text(event);
    const std::lock_guard lock(mutex);
    pending += (file.size() == 0 && pending.empty() ? "[\n" : ",\n") + text;
    if (++pending_events >= kEventsPerFlush) flush_locked();
  }

  void add_span(std::string_view name, int track, std::int64_t start_us, std::int64_t end_us, const Json& args) {
    Json fields = {{"tid", track}, {"ts", start_us}, {"dur", end_us - start_us}};
    if (!args.empty()) fields["args"] = args;
    add("X", name, fields);
  }

  void flush() {
    const std::lock_guard lock(mutex);
    flush_locked();
  }

  // If writing fails, the trace ends but the run continues.
  void flush_locked() {
    pending_events = 0;
    if (pending.empty() || given_up) return pending.clear();
    try {
      file.append(std::exchange(pending, {}), "\n]\n");
    } catch (const std::exception& e) {
      given_up = true;
      std::fputs(fmt::format("braid: {}; the trace of rank {} ends here\n", e.what(), rank).c_str(), stderr);
    }
  }
};

struct Trace::Span::Open {
  Writer& writer;
  std::string name;
  int track;
  Json args;
  std::int64_t start_us;
};

void Trace::Span::Close::operator()(Open* open) const noexcept {
  const std::unique_ptr<Open> ended(open);
  ended->writer.add_span(ended->name, ended->track, ended->start_us, ended->writer.us_of(SteadyClock::now()),
                         ended->args);
}

std::string trace_path(const std::string& folder, int global_rank) {
  return fmt::format("{}/trace_rank_{:05}.json", folder, global_rank);
}

Trace::Trace() = default;
Trace::Trace(Trace&&) noexcept = default;
Trace::~Trace() = default;

Trace::Trace(const std::string& folder, int global_rank, const std::string& coordinates) {
  std::filesystem::create_directories(folder);
  const auto describe = [&](const char* kind, const Json& args) {
    writer_->add("M", kind, {{"tid", kMainTrack}, {"args", args}});
  };
  writer_.reset(new Writer{.file{trace_path(folder, global_rank), AppendOnlyFile::Start::Empty}, .rank = global_rank});
  describe("process_name", {{"name", fmt::format("rank {}: {}", global_rank, coordinates)}});
  describe("process_sort_index", {{"sort_index", global_rank}});
  add_track("main");
  flush();
}

int Trace::add_track(const std::string& name) {
  if (!enabled()) return kMainTrack;
  const int track = [&] {
    const std::lock_guard lock(writer_->mutex);
    return writer_->tracks++;
  }();
  writer_->add("M", "thread_name", {{"tid", track}, {"args", {{"name", name}}}});
  return track;
}

Trace::Span Trace::open_span(std::string_view name, std::initializer_list<Arg> args, int track) {
  Span span;
  span.open_.reset(
      new Span::Open{*writer_, std::string(name), track, to_json(args), writer_->us_of(SteadyClock::now())});
  return span;
}

void Trace::add_span(std::string_view name, TimePoint begin, TimePoint end, const std::vector<Arg>& args, int track) {
  if (enabled()) writer_->add_span(name, track, writer_->us_of(begin), writer_->us_of(end), to_json(args));
}

// Perfetto joins the ends of an arrow by category, name and id. An id above 2^53 would not survive as a double.
void Trace::add_arrow(std::uint64_t id, ArrowEnd end, TimePoint time, int track) {
  if (!enabled()) return;
  constexpr std::uint64_t kExact = (std::uint64_t{1} << 53) - 1;
  Json fields = {{"cat", "communication"}, {"id", id & kExact}, {"tid", track}, {"ts", writer_->us_of(time)}};
  if (end == ArrowEnd::End) fields["bp"] = "e";  // it ends at the span around it, not at the next one
  writer_->add(end == ArrowEnd::Start ? "s" : "f", "communication", fields);
}

void Trace::counter(std::string_view name, std::initializer_list<Arg> values) {
  if (enabled()) writer_->add("C", name, {{"ts", writer_->us_of(SteadyClock::now())}, {"args", to_json(values)}});
}

std::int64_t Trace::bytes() const {
  if (!enabled()) return 0;
  const std::lock_guard lock(writer_->mutex);
  return writer_->file.size();
}

bool Trace::lost_output() const { return enabled() && writer_->given_up; }

void Trace::flush() {
  if (enabled()) writer_->flush();
}

}  // namespace braid
