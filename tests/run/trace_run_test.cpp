// The trace of a run on four ranks, as a user opens it: one file, with arrows between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "comm/comm_meter.h"
#include "log/trace.h"
#include "run/trainer.h"
#include "support/ranks.h"
#include "support/trace_events.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::trace_events;

Recipe traced_recipe(const std::string& folder) {
  return parse_recipe(R"(
topology: {modules: {images: {kind: encoder, dp: 2}, language: {tp: 2}}}
model: {dtype: float32, language: {pattern: "M*E-"}, images: {encoder: {layers: 1}}}
data: {sequence_length: 32, min_length: 24}
train: {iterations: 3, micro_batch: 2, global_batch: 8}
log: {interval: 3}
)",
                      {{"log.trace_dir", folder}});
}

class TracedRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::TemporaryFolder;
    const Recipe recipe = traced_recipe(folder_->path());
    const Topology topology(recipe.topology, workload_of(recipe));
    const StopRequest stop;
    traffic_.resize(static_cast<std::size_t>(topology.world_size()));
    ::testing::internal::CaptureStdout();
    testing::on_threads(topology.world_size(), [&](World& world) {
      train(recipe, topology, world, {.stop = stop});
      for (const auto& [key, traffic] : world.progress().traffic()) {
        Traffic& sum = traffic_[static_cast<std::size_t>(world.rank())][key.second];
        sum.operations += traffic.operations;
        sum.bytes += traffic.bytes;
      }
    });
    output_ = ::testing::internal::GetCapturedStdout();
    path_ = merged_trace_path(folder_->path());
  }
  static void TearDownTestSuite() { delete folder_; }

  // Spans of the communication tracks.
  static std::vector<json> communication() {
    const auto names = testing::track_names(path_);
    std::vector<json> spans;
    for (const json& span : trace_events(path_, "X"))
      if (names.at({span["pid"], span["tid"]}).starts_with("communication")) spans.push_back(span);
    return spans;
  }

  inline static testing::TemporaryFolder* folder_ = nullptr;
  inline static std::string path_, output_;
  // Of each rank by operation, as its progress counts it.
  inline static std::vector<std::map<std::string, Traffic>> traffic_;
};

TEST_F(TracedRun, TheMergedFileHasEveryRank) {
  std::map<int, std::string> names;
  for (const json& event : trace_events(path_, "M"))
    if (event["name"] == "process_name") names[event["pid"]] = event["args"]["name"];
  ASSERT_EQ(names.size(), 4u);
  EXPECT_THAT(names[0], HasSubstr("rank 0: images[tp=0 "));
  EXPECT_THAT(names[3], HasSubstr("rank 3: language[tp=1 "));
  std::size_t events = 0;
  for (int rank = 0; rank < 4; ++rank)
    events += json::parse(testing::read_file(trace_path(folder_->path(), rank))).size();
  EXPECT_EQ(json::parse(testing::read_file(path_)).size(), events);
}

TEST_F(TracedRun, EveryArrowHasTwoEndsOnSpansOfOneOperation) {
  const std::vector<json> spans = communication();
  std::map<json, std::map<std::string, json>> arrows;
  for (const char* phase : {"s", "f"})
    for (const json& end : trace_events(path_, phase)) EXPECT_TRUE(arrows[end["id"]].emplace(phase, end).second) << end;
  std::map<std::string, int> of_operation;
  for (const auto& [id, ends] : arrows) {
    ASSERT_EQ(ends.size(), 2u) << ends.begin()->second;
    const json &start = ends.at("s"), &end = ends.at("f");
    EXPECT_NE(start["pid"], end["pid"]);
    EXPECT_LE(start["ts"], end["ts"]);
    const json *from = testing::span_around(start, spans), *to = testing::span_around(end, spans);
    ASSERT_TRUE(from && to) << start << end;
    EXPECT_EQ((*from)["name"], (*to)["name"]);
    ++of_operation[(*from)["name"]];
  }
  for (const char* name : {"exchange images.embeddings", "all_reduce language.tp", "reduce_scatter images.dp-cp"})
    EXPECT_GT(of_operation[name], 0) << name;
}

// Operations outside of iterations, such as those of the start, are not in the trace; these occur only inside.
TEST_F(TracedRun, SpansCarryTheBytesThatProgressCounts) {
  const std::vector<json> all = communication();
  for (int rank = 0; rank < 4; ++rank)
    for (const char* op : {"exchange", "reduce_scatter", "all_gather"}) {
      Traffic spans;
      for (const json& span : all) {
        if (span["pid"] != rank || !span["name"].get<std::string>().starts_with(op)) continue;
        spans.operations += span["args"].value("transfers", 1);
        spans.bytes += span["args"]["bytes"].get<std::int64_t>();
      }
      EXPECT_EQ(spans, traffic_[static_cast<std::size_t>(rank)][op]) << op << " of rank " << rank;
    }
}

TEST_F(TracedRun, SpansOfATrackDoNotOverlap) {
  std::map<std::pair<int, int>, std::int64_t> ends;
  std::vector<json> spans = communication();
  std::sort(spans.begin(), spans.end(), [](const json& a, const json& b) { return a["ts"] < b["ts"]; });
  for (const json& span : spans) {
    std::int64_t& end = ends[{span["pid"], span["tid"]}];
    EXPECT_GE(span["ts"], end);
    end = span["ts"].get<std::int64_t>() + span["dur"].get<std::int64_t>();
  }
}

TEST_F(TracedRun, TheLogSaysHowMuchIsHidden) {
  EXPECT_THAT(output_, AllOf(HasSubstr(" comm (ms) | images   | bridge:"), HasSubstr(" comm (ms) | language | bridge:"),
                             HasSubstr("(hidden "), HasSubstr(" | tp: "), HasSubstr("\ncommunication ")));
}

}  // namespace
}  // namespace braid
