#include "log/trace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/resource.h>
#include "base/error.h"
#include "support/programs.h"

namespace braid {
namespace {

using nlohmann::json;
using testing::read_file;
using testing::TemporaryFolder;

json events_in(const TemporaryFolder& folder, const std::string& name = "trace_rank_00003.json") {
  return json::parse(read_file(folder.path() + "/" + name));
}

std::vector<json> spans_in(const TemporaryFolder& folder) {
  std::vector<json> spans;
  for (const json& event : events_in(folder))
    if (event["ph"] == "X") spans.push_back(event);
  return spans;
}

std::int64_t start_of(const json& span) { return span["ts"].get<std::int64_t>(); }
std::int64_t end_of(const json& span) { return start_of(span) + span["dur"].get<std::int64_t>(); }

bool is_inside(const json& inner, const json& outer) {
  return start_of(outer) <= start_of(inner) && end_of(inner) <= end_of(outer);
}

void wait_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

// On a full disk, the file stays valid JSON.
TEST(Trace, EndsWhereItCannotBeWritten) {
  TemporaryFolder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto at_limit = signal(SIGXFSZ, SIG_IGN);
  {
    Trace trace(folder.path(), 3, "");
    { const auto span = trace.span("first"); }
    trace.flush();
    EXPECT_FALSE(trace.lost_output());
    const auto size = std::filesystem::file_size(folder.path() + "/trace_rank_00003.json");
    const rlimit little = {size + 20, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
    { const auto span = trace.span("second"); }
    trace.flush();
    EXPECT_TRUE(trace.lost_output());
    { const auto span = trace.span("third"); }
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, at_limit);
  ASSERT_EQ(spans_in(folder).size(), 1u);
  EXPECT_EQ(spans_in(folder)[0]["name"], "first");
}

TEST(Trace, SpansNest) {
  TemporaryFolder folder;
  {
    Trace trace(folder.path(), 3, "language tp 0");
    auto iteration = trace.span("iteration", {{"iteration", 12}});
    {
      auto forward = trace.span("language forward", {{"microbatch", 3}, {"rows", 64}});
      auto wait = trace.span("bridge wait");
      wait_a_little();
    }
    wait_a_little();
    auto backward = trace.span("language backward");
    wait_a_little();
  }
  std::map<std::string, json> spans;
  for (const json& span : spans_in(folder)) spans[span["name"]] = span;
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_TRUE(is_inside(spans["bridge wait"], spans["language forward"]));
  EXPECT_TRUE(is_inside(spans["language forward"], spans["iteration"]));
  EXPECT_TRUE(is_inside(spans["language backward"], spans["iteration"]));
  EXPECT_GE(start_of(spans["language backward"]), end_of(spans["language forward"]) + 50);
  EXPECT_GE(spans["bridge wait"]["dur"], 50);
  EXPECT_EQ(spans["iteration"]["args"], json({{"iteration", 12}}));
  EXPECT_EQ(spans["language forward"]["args"], json({{"microbatch", 3}, {"rows", 64}}));
  for (const auto& [name, span] : spans) EXPECT_EQ(span["pid"], 3) << name;
}

TEST(Trace, RowsAreNamed) {
  TemporaryFolder folder;
  {
    Trace trace(folder.path(), 3, "language tp 0");
    const int loader = trace.add_track("data loader");
    EXPECT_NE(loader, Trace::kMainTrack);
    auto span = trace.span("read", {}, loader);
  }
  const json events = events_in(folder);
  std::map<int, std::string> tracks;
  std::string process;
  for (const json& event : events) {
    if (event["name"] == "process_name") process = event["args"]["name"];
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ(process, "rank 3: language tp 0");
  EXPECT_EQ(tracks, (std::map<int, std::string>{{0, "main"}, {1, "data loader"}}));
  EXPECT_EQ(spans_in(folder).at(0)["tid"], 1);
}

TEST(Trace, TimesAreWallTimesSoThatRanksLineUp) {
  using namespace std::chrono;
  const auto now_us = [] { return floor<microseconds>(system_clock::now().time_since_epoch()).count(); };
  TemporaryFolder folder;
  const std::int64_t before = now_us();
  {
    Trace trace(folder.path(), 3, "language");
    auto span = trace.span("step");
  }
  const json step = spans_in(folder).at(0);
  EXPECT_GE(start_of(step), before);
  EXPECT_LE(end_of(step), now_us() + 1000);  // the two clocks may drift apart, by far less than this
}

// The file of a process that is killed at any time between two flushes.
TEST(Trace, TheFileIsWholeAfterEveryFlush) {
  TemporaryFolder folder;
  Trace trace(folder.path(), 3, "language");
  EXPECT_TRUE(spans_in(folder).empty());
  for (std::size_t i = 1; i <= 5; ++i) {
    { auto span = trace.span("step"); }
    EXPECT_EQ(spans_in(folder).size(), i - 1);
    trace.flush();
    EXPECT_EQ(spans_in(folder).size(), i);
  }
}

TEST(Trace, FlushesByItselfWhenManySpansWait) {
  TemporaryFolder folder;
  Trace trace(folder.path(), 3, "language");
  for (int i = 0; i < 1000; ++i) auto span = trace.span("step");
  EXPECT_GT(spans_in(folder).size(), 700u);
}

TEST(Trace, ThreadsMayTraceAtOnce) {
  TemporaryFolder folder;
  {
    Trace trace(folder.path(), 3, "language");
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&trace] {
        const int track = trace.add_track("worker");
        for (int i = 0; i < 200; ++i) auto span = trace.span("work", {}, track);
      });
    for (std::thread& thread : threads) thread.join();
  }
  std::map<int, int> spans_of_track;
  for (const json& span : spans_in(folder)) ++spans_of_track[span["tid"]];
  EXPECT_EQ(spans_of_track, (std::map<int, int>{{1, 200}, {2, 200}, {3, 200}, {4, 200}}));
}

TEST(Trace, ALaterRunReplacesALongerFile) {
  TemporaryFolder folder;
  for (const int spans : {50, 1}) {
    Trace trace(folder.path(), 3, "language");
    for (int i = 0; i < spans; ++i) auto span = trace.span("step");
  }
  EXPECT_EQ(spans_in(folder).size(), 1u);
}

TEST(Trace, TwoRunsMayNotWriteOneFile) {
  const TemporaryFolder folder;
  {
    const Trace first(folder.path(), 3, "language");
    EXPECT_NO_THROW(Trace(folder.path(), 4, "language"));
    EXPECT_THROW(Trace(folder.path(), 3, "language"), ConfigError);
  }
  EXPECT_FALSE(events_in(folder).empty());
  EXPECT_NO_THROW(Trace(folder.path(), 3, "language"));
}

TEST(Trace, DisabledItWritesNothing) {
  Trace trace;
  EXPECT_FALSE(trace.enabled());
  EXPECT_EQ(trace.add_track("data loader"), Trace::kMainTrack);
  auto span = trace.span("language forward", {{"microbatch", 3}});
  trace.flush();
}

}  // namespace
}  // namespace braid
