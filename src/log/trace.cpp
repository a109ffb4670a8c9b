#include "log/trace.h"
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "formats/atomic_file.h"
#include "log/log_files.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kEventsPerFlush = 256;

template <class Args>
Json to_json(const Args& args) {
  Json values;
  for (const Trace::Arg& arg : args) std::visit([&](auto value) { values[arg.name] = value; }, arg.value);
  return values;
}

namespace fs = std::filesystem;

std::map<int, fs::path> trace_files(const std::string& folder, std::optional<int> world_size) {
  std::map<int, fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const fs::path name = entry.path().filename();
    int rank = 0;
    const bool is_trace = std::sscanf(name.c_str(), "trace_rank_%d.json", &rank) == 1 &&
                          fs::path(trace_path(folder, rank)).filename() == name;
    if (is_trace && (!world_size || rank < *world_size)) files.emplace(rank, entry.path());
  }
  if (error) throw ConfigError({fmt::format("cannot read '{}': {}", folder, error.message()), "", "name a folder"});
  if (files.empty())
    throw ConfigError({fmt::format("'{}' has no traces of ranks", folder), "",
                       fmt::format("name the folder that a run got as --trace; it has files like {}",
                                   fs::path(trace_path("", 0)).filename().string())});
  return files;
}

constexpr std::chrono::microseconds kShortest{1};  // the resolution of a trace: an arrow needs a span around its end

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
    // Span names are ASCII, but even an invalid UTF-8 name must not throw in a destructor.
    const std::string text = event.dump(-1, ' ', false, Json::error_handler_t::replace);
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

// A trace has one event per line, with a comma at its end, between lines with its brackets.
MergedTraces merge_traces(const std::string& folder, std::optional<int> world_size,
                          std::atomic<std::int64_t>* bytes_read) {
  constexpr std::size_t kFlushAt = 1 << 20;
  MergedTraces merged;
  const std::map<int, fs::path> files = trace_files(folder, world_size);
  AtomicFile output(merged_trace_path(folder));
  std::string pending;
  std::int64_t written = 0;
  const auto flush = [&] {
    output.write_at(written, std::as_bytes(std::span(pending)));
    written += std::ssize(pending);
    pending.clear();
  };
  for (const auto& [rank, path] : files) {
    std::ifstream file(path);
    if (!file) throw_errno(fmt::format("cannot read '{}'", path.string()));
    merged.ranks.push_back(rank);
    for (std::string line; std::getline(file, line);) {
      if (bytes_read) *bytes_read += std::ssize(line) + 1;
      if (line.ends_with(',')) line.pop_back();
      if (line == "[" || line == "]" || line.empty()) continue;
      if (!line.starts_with('{') || !nlohmann::json::accept(line)) {
        merged.cut.push_back(rank);
        break;
      }
      pending += (merged.events++ == 0 ? "[\n" : ",\n") + line;
      if (pending.size() >= kFlushAt) flush();
    }
    if (file.bad()) throw_errno(fmt::format("cannot read '{}'", path.string()));
  }
  pending += merged.events == 0 ? "[\n]\n" : "\n]\n";
  flush();
  output.commit();
  return merged;
}

void CommTrack::add(std::vector<CommSpan> spans) {
  for (CommSpan& span : spans) span.end = std::max(span.end, span.begin + kShortest);
  std::ranges::stable_sort(spans, [](const CommSpan& a, const CommSpan& b) { return a.begin < b.begin; });
  for (const CommSpan& span : spans) {
    auto track = std::ranges::find_if(tracks_, [&](const Track& each) { return each.end <= span.begin; });
    if (track == tracks_.end()) {
      const std::string number = tracks_.empty() ? "" : fmt::format(" {}", tracks_.size() + 1);
      track = tracks_.insert(track, {trace_.add_track("communication" + number), {}});
    }
    track->end = span.end;
    const auto& [group, op, purpose] = span.key;
    const std::string name = fmt::format("{} {}{}", op, group, purpose.empty() ? "" : fmt::format(" ({})", purpose));
    const auto bytes = std::accumulate(span.parts.begin(), span.parts.end(), std::int64_t{0},
                                       [](std::int64_t sum, const CommSpan::Part& part) { return sum + part.bytes; });
    const double seconds = std::chrono::duration<double>(span.end - span.begin).count();
    std::vector<Trace::Arg> args = {{"bytes", bytes}, {"number", span.parts.front().number}};
    if (span.parts.size() > 1) args.emplace_back("transfers", span.parts.size());
    args.emplace_back("GB/s", 1e-9 * static_cast<double>(bytes) / seconds);
    args.emplace_back("exposed us", std::llround(1e3 * span.exposed_ms));
    trace_.add_span(name, span.begin, span.end, args, track->number);
    for (const CommSpan::Part& part : span.parts) add_arrows(span, part, track->number);
  }
}

// A transfer is an arrow from its sender, and a collective a chain of arrows from each member to the next. An arrow
// leads from the beginning of a span to the end of another; since a member completes only after all have begun, no
// arrow points back in time.
void CommTrack::add_arrows(const CommSpan& span, const CommSpan::Part& part, int track) {
  const auto arrow = [&](const std::string& link, Trace::ArrowEnd end) {
    const auto time = end == Trace::ArrowEnd::Start ? span.begin : span.end - kShortest;
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, whose value is the same on all ranks
    for (const char c : fmt::format("{}#{}#{}", part.meeting, part.number, link))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    trace_.add_arrow(hash, end, time, track);
  };
  if (part.sender >= 0) return arrow("", part.sender == global_rank_ ? Trace::ArrowEnd::Start : Trace::ArrowEnd::End);
  const auto own = std::ranges::find(part.members, global_rank_);
  if (own != part.members.begin()) arrow(fmt::format("{}>{}", *std::prev(own), *own), Trace::ArrowEnd::End);
  if (std::next(own) != part.members.end()) arrow(fmt::format("{}>{}", *own, *std::next(own)), Trace::ArrowEnd::Start);
}

}  // namespace braid
