#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "log/trace.h"
#include "support/trace_events.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::span_around;
using testing::TemporaryFolder;
using testing::trace_events;
using testing::track_names;

const CommSpan::TimePoint kStart = std::chrono::steady_clock::now();
CommSpan::TimePoint at(double ms) { return kStart + std::chrono::microseconds(std::llround(1e3 * ms)); }

CommSpan all_reduce(std::vector<int> members, std::int64_t number, double begin, double end) {
  return {.key = {"language.tp", "all_reduce"},
          .parts = {{.meeting = "language.tp", .number = number, .bytes = 4000, .members = std::move(members)}},
          .begin = at(begin),
          .end = at(end),
          .exposed_ms = 0.25};
}

CommSpan exchange(const std::vector<std::pair<int, int>>& transfers, double begin, double end) {
  CommSpan span = {.key = {"world", "exchange", "bridge"}, .parts = {}, .begin = at(begin), .end = at(end)};
  for (const auto& [from, to] : transfers)
    span.parts.push_back({.meeting = fmt::format("world {}>{}", from, to),
                          .number = 1,
                          .bytes = 10,
                          .members = {std::min(from, to), std::max(from, to)},
                          .sender = from});
  return span;
}

std::string trace_of(const TemporaryFolder& folder, int rank, const std::vector<CommSpan>& spans) {
  Trace trace(folder.path(), rank, "");
  CommTrack track(trace, rank);
  track.add(spans);
  return trace_path(folder.path(), rank);
}

TEST(CommTrack, ASpanSaysWhatItCarriedHowFastAndWhatWasExposed) {
  const TemporaryFolder folder;
  const std::string path = trace_of(folder, 3, {all_reduce({2, 3}, 12, 0, 2), exchange({{3, 5}, {5, 3}}, 4, 5)});
  const std::vector<json> spans = trace_events(path, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "all_reduce language.tp");
  EXPECT_EQ(spans[0]["dur"], 2000);
  EXPECT_EQ(spans[0]["args"]["bytes"], 4000);
  EXPECT_EQ(spans[0]["args"]["number"], 12);
  EXPECT_EQ(spans[0]["args"]["exposed us"], 250);
  EXPECT_NEAR(spans[0]["args"]["GB/s"], 0.002, 1e-9);
  EXPECT_EQ(spans[1]["name"], "exchange world (bridge)");
  EXPECT_EQ(spans[1]["args"]["bytes"], 20);
  EXPECT_EQ(spans[1]["args"]["transfers"], 2);
  EXPECT_EQ(track_names(path).at({3, spans[0]["tid"]}), "communication");
}

TEST(CommTrack, OperationsThatOverlapGetTracksOfTheirOwn) {
  const TemporaryFolder folder;
  const std::string path = trace_of(
      folder, 0,
      {all_reduce({0}, 1, 0, 10), all_reduce({0}, 2, 5, 15), all_reduce({0}, 3, 10, 12), all_reduce({0}, 4, 12, 20)});
  std::vector<std::string> tracks;
  for (const json& span : trace_events(path, "X")) tracks.push_back(track_names(path).at({0, span["tid"]}));
  EXPECT_THAT(tracks, ElementsAre("communication", "communication 2", "communication", "communication"));
}

TEST(CommTrack, AnInstantGetsASpanThatAnArrowCanEndAt) {
  const TemporaryFolder folder;
  const std::string path = trace_of(folder, 1, {all_reduce({0, 1}, 1, 3, 3)});
  const std::vector<json> spans = trace_events(path, "X"), ends = trace_events(path, "f");
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_NE(span_around(ends[0], spans), nullptr);
}

TEST(CommTrack, ArrowsGoFromSendersAndAlongTheMembersOfACollective) {
  const TemporaryFolder folder;
  std::map<json, std::vector<std::string>> arrows;  // "s of rank 0", by id
  for (const int rank : {0, 1, 4}) {
    std::vector<CommSpan> operations = {all_reduce({0, 1, 4}, 1, 0, 2), all_reduce({0, 1, 4}, 2, 2, 3)};
    if (rank > 0) operations.push_back(exchange({{1, 4}}, 5, 6));
    const std::string path = trace_of(folder, rank, operations);
    const std::vector<json> spans = trace_events(path, "X");
    for (const char* phase : {"s", "f"})
      for (const json& end : trace_events(path, phase)) {
        arrows[end["id"]].push_back(fmt::format("{} of rank {}", phase, rank));
        EXPECT_NE(span_around(end, spans), nullptr);
      }
  }
  std::map<std::vector<std::string>, int> kinds;
  for (const auto& [id, ends] : arrows) ++kinds[ends];
  EXPECT_EQ(kinds, (std::map<std::vector<std::string>, int>{{{"s of rank 0", "f of rank 1"}, 2},
                                                            {{"s of rank 1", "f of rank 4"}, 3}}));
}

// Groups of other ranks have the same name and the same numbers.
TEST(CommTrack, GroupsOfOneNameDoNotShareArrows) {
  const TemporaryFolder folder;
  const auto id = [&](int rank, std::vector<int> members) {
    return trace_events(trace_of(folder, rank, {all_reduce(std::move(members), 1, 0, 1)}), "s").at(0)["id"];
  };
  EXPECT_NE(id(0, {0, 1}), id(2, {2, 3}));
  EXPECT_LT(id(0, {0, 1}).get<double>(), 9007199254740992.0) << "a double holds it exactly";
}

}  // namespace
}  // namespace braid
