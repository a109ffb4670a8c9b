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

class Trace::Writer {
 public:
  Writer(const std::string& path, int global_rank)
      : file_(path, AppendOnlyFile::Start::Empty),
        global_rank_(global_rank),
        wall_at_start_(std::chrono::system_clock::now().time_since_epoch()),
        steady_at_start_(SteadyClock::now()) {}

  ~Writer() { flush(); }

  // Whole microseconds, rounded down at both ends of a span, keep the nesting exact, and 2^53 holds them as a double.
  std::int64_t us_of(TimePoint time) const {
    return std::chrono::floor<std::chrono::microseconds>(wall_at_start_ + (time - steady_at_start_)).count();
  }
  std::int64_t now_us() const { return us_of(SteadyClock::now()); }

  void add_metadata(const std::string& kind, int track, const Json& args) {
    add({{"ph", "M"}, {"name", kind}, {"pid", global_rank_}, {"tid", track}, {"args", args}});
  }

  void add_complete(std::string_view name, int track, std::int64_t start_us, std::int64_t end_us, const Json& args) {
    Json event = {{"ph", "X"},    {"name", name},   {"pid", global_rank_},
                  {"tid", track}, {"ts", start_us}, {"dur", end_us - start_us}};
    if (!args.empty()) event["args"] = args;
    add(event);
  }

  // Perfetto joins the ends of an arrow by category, name and id. An id above 2^53 would not survive as a double.
  void add_arrow(std::uint64_t id, ArrowEnd end, std::int64_t time_us, int track) {
    constexpr std::uint64_t kExact = (std::uint64_t{1} << 53) - 1;
    Json event = {{"ph", end == ArrowEnd::Start ? "s" : "f"},
                  {"cat", "communication"},
                  {"name", "communication"},
                  {"id", id & kExact},
                  {"pid", global_rank_},
                  {"tid", track},
                  {"ts", time_us}};
    if (end == ArrowEnd::End) event["bp"] = "e";  // it ends at the span around it, not at the next one
    add(event);
  }

  void add_counter(std::string_view name, const Json& values) {
    add({{"ph", "C"}, {"name", name}, {"pid", global_rank_}, {"ts", now_us()}, {"args", values}});
  }

  int add_track(const std::string& name) {
    const int track = [&] {
      std::lock_guard lock(mutex_);
      return tracks_++;
    }();
    add_metadata("thread_name", track, {{"name", name}});
    return track;
  }

  void flush() {
    std::lock_guard lock(mutex_);
    flush_locked();
  }

  std::int64_t bytes() {
    std::lock_guard lock(mutex_);
    return file_.size();
  }
  bool given_up() const { return given_up_; }

 private:
  void add(const Json& event) {
    const std::string text = to_text(event);
    std::lock_guard lock(mutex_);
    pending_ += (file_.size() == 0 && pending_.empty() ? "[\n" : ",\n") + text;
    if (++pending_events_ >= kEventsPerFlush) flush_locked();
  }

  // If writing fails, the trace ends but the run continues.
  void flush_locked() {
    pending_events_ = 0;
    if (pending_.empty() || given_up_) return pending_.clear();
    try {
      file_.append(std::exchange(pending_, {}), "\n]\n");
    } catch (const std::exception& e) {
      given_up_ = true;
      std::fputs(fmt::format("braid: {}; the trace of rank {} ends here\n", e.what(), global_rank_).c_str(), stderr);
    }
  }

  std::mutex mutex_;
  AppendOnlyFile file_;
  std::string pending_;
  std::atomic<bool> given_up_ = false;
  int pending_events_ = 0, tracks_ = 0;
  const int global_rank_;
  const std::chrono::nanoseconds wall_at_start_;
  const SteadyClock::time_point steady_at_start_;
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
  ended->writer.add_complete(ended->name, ended->track, ended->start_us, ended->writer.now_us(), ended->args);
}

std::string trace_path(const std::string& folder, int global_rank) {
  return fmt::format("{}/trace_rank_{:05}.json", folder, global_rank);
}

Trace::Trace() = default;
Trace::Trace(Trace&&) noexcept = default;
Trace::~Trace() = default;

Trace::Trace(const std::string& folder, int global_rank, const std::string& coordinates) {
  std::filesystem::create_directories(folder);
  writer_ = std::make_unique<Writer>(trace_path(folder, global_rank), global_rank);
  writer_->add_metadata("process_name", kMainTrack, {{"name", fmt::format("rank {}: {}", global_rank, coordinates)}});
  writer_->add_metadata("process_sort_index", kMainTrack, {{"sort_index", global_rank}});
  writer_->add_track("main");
  writer_->flush();
}

int Trace::add_track(const std::string& name) { return enabled() ? writer_->add_track(name) : kMainTrack; }

Trace::Span Trace::open_span(std::string_view name, std::initializer_list<Arg> args, int track) {
  Span span;
  span.open_.reset(new Span::Open{*writer_, std::string(name), track, to_json(args), writer_->now_us()});
  return span;
}

void Trace::add_span(std::string_view name, TimePoint begin, TimePoint end, const std::vector<Arg>& args, int track) {
  if (enabled()) writer_->add_complete(name, track, writer_->us_of(begin), writer_->us_of(end), to_json(args));
}

void Trace::add_arrow(std::uint64_t id, ArrowEnd end, TimePoint time, int track) {
  if (enabled()) writer_->add_arrow(id, end, writer_->us_of(time), track);
}

void Trace::counter(std::string_view name, std::initializer_list<Arg> values) {
  if (enabled()) writer_->add_counter(name, to_json(values));
}

std::int64_t Trace::bytes() const { return enabled() ? writer_->bytes() : 0; }

bool Trace::lost_output() const { return enabled() && writer_->given_up(); }

void Trace::flush() {
  if (enabled()) writer_->flush();
}

}  // namespace braid
