#include "log/comm_track.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace braid {
namespace {

constexpr std::chrono::microseconds kShortest{1};  // the resolution of a trace: an arrow needs a span around its end

// FNV-1a, whose value is the same on all ranks.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string name_of(const CommKey& key) {
  return fmt::format("{} {}{}", key.op, key.group, key.purpose.empty() ? "" : fmt::format(" ({})", key.purpose));
}

std::vector<Trace::Arg> args_of(const CommSpan& span) {
  const auto bytes = std::accumulate(span.parts.begin(), span.parts.end(), std::int64_t{0},
                                     [](std::int64_t sum, const CommSpan::Part& part) { return sum + part.bytes; });
  const double seconds = std::chrono::duration<double>(span.end - span.begin).count();
  std::vector<Trace::Arg> args = {{"bytes", bytes}, {"number", span.parts.front().number}};
  if (span.parts.size() > 1) args.emplace_back("transfers", span.parts.size());
  args.emplace_back("GB/s", 1e-9 * static_cast<double>(bytes) / seconds);
  args.emplace_back("exposed us", std::llround(1e3 * span.exposed_ms));
  return args;
}

}  // namespace

void CommTrack::add(std::vector<CommSpan> spans) {
  for (CommSpan& span : spans) span.end = std::max(span.end, span.begin + kShortest);
  std::stable_sort(spans.begin(), spans.end(), [](const CommSpan& a, const CommSpan& b) { return a.begin < b.begin; });
  for (const CommSpan& span : spans) {
    const int track = track_for(span);
    trace_.add_span(name_of(span.key), span.begin, span.end, args_of(span), track);
    for (const CommSpan::Part& part : span.parts) add_arrows(span, part, track);
  }
}

int CommTrack::track_for(const CommSpan& span) {
  auto lane = std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.end <= span.begin; });
  if (lane == lanes_.end()) {
    const std::string number = lanes_.empty() ? "" : fmt::format(" {}", lanes_.size() + 1);
    lane = lanes_.insert(lane, {trace_.add_track("communication" + number), {}});
  }
  lane->end = span.end;
  return lane->track;
}

// A transfer is an arrow from its sender, and a collective a chain of arrows from each member to the next. An arrow
// leads from the beginning of a span to the end of another; since a member completes only after all have begun, no
// arrow points back in time.
void CommTrack::add_arrows(const CommSpan& span, const CommSpan::Part& part, int track) {
  const auto arrow = [&](const std::string& link, Trace::ArrowEnd end) {
    const auto time = end == Trace::ArrowEnd::Start ? span.begin : span.end - kShortest;
    trace_.add_arrow(hash_of(fmt::format("{}#{}#{}", part.meeting, part.number, link)), end, time, track);
  };
  if (part.sender >= 0) return arrow("", part.sender == global_rank_ ? Trace::ArrowEnd::Start : Trace::ArrowEnd::End);
  const auto own = std::find(part.members.begin(), part.members.end(), global_rank_);
  if (own != part.members.begin()) arrow(fmt::format("{}>{}", *std::prev(own), *own), Trace::ArrowEnd::End);
  if (std::next(own) != part.members.end()) arrow(fmt::format("{}>{}", *own, *std::next(own)), Trace::ArrowEnd::Start);
}

}  // namespace braid
