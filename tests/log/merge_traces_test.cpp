#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "log/trace.h"
#include "support/errors.h"
#include "support/trace_events.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using testing::TemporaryFolder;

void write_trace(const TemporaryFolder& folder, int rank, int spans) {
  Trace trace(folder.path(), rank, "language");
  for (int i = 0; i < spans; ++i) auto span = trace.span("step", {{"number", i}});
}

std::map<int, int> spans_by_rank(const TemporaryFolder& folder) {
  std::map<int, int> spans;
  for (const json& event : testing::trace_events(merged_trace_path(folder.path()), "X")) ++spans[event["pid"]];
  return spans;
}

TEST(MergeTraces, HasTheEventsNamesAndOrderOfAllRanks) {
  const TemporaryFolder folder;
  for (const int rank : {10, 2, 0}) write_trace(folder, rank, 600);  // more than one flush
  std::ofstream(folder.path() + "/trace_rank_old.json") << "not a trace";
  std::atomic<std::int64_t> bytes = 0;
  const MergedTraces merged = merge_traces(folder.path(), std::nullopt, &bytes);
  EXPECT_THAT(merged.ranks, ElementsAre(0, 2, 10));
  EXPECT_THAT(merged.cut, IsEmpty());
  EXPECT_EQ(spans_by_rank(folder), (std::map<int, int>{{0, 600}, {2, 600}, {10, 600}}));
  const json events = json::parse(read_file(merged_trace_path(folder.path())));
  EXPECT_EQ(events.size(), static_cast<std::size_t>(merged.events));
  std::vector<json> names, order;
  for (const json& event : events) {
    if (event["name"] == "process_name") names.push_back(event["args"]["name"]);
    if (event["name"] == "process_sort_index") order.push_back(event["args"]["sort_index"]);
  }
  EXPECT_THAT(names, ElementsAre("rank 0: language", "rank 2: language", "rank 10: language"));
  EXPECT_THAT(order, ElementsAre(0, 2, 10));
  std::int64_t sizes = 0;
  for (const int rank : {0, 2, 10})
    sizes += static_cast<std::int64_t>(read_file(trace_path(folder.path(), rank)).size());
  EXPECT_EQ(bytes, sizes);
}

// The process was killed while it wrote, at any byte.
TEST(MergeTraces, TakesTheWholeEventsOfAFileThatWasCut) {
  const TemporaryFolder folder;
  write_trace(folder, 0, 2);
  write_trace(folder, 1, 3);
  const std::string path = trace_path(folder.path(), 1), whole = read_file(path);
  const std::size_t third = whole.rfind('{', whole.rfind("\"step\""));
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    std::filesystem::resize_file(path, 0);
    std::ofstream(path) << whole.substr(0, size);
    const MergedTraces merged = merge_traces(folder.path());
    EXPECT_THAT(merged.ranks, ElementsAre(0, 1));
    const std::map<int, int> spans = spans_by_rank(folder);
    EXPECT_EQ(spans.at(0), 2);
    if (size < third) continue;
    const bool is_whole = size >= whole.find("}\n]") + 1;
    EXPECT_EQ(spans.at(1), is_whole ? 3 : 2) << size;
    EXPECT_EQ(merged.cut.empty(), is_whole || size == third) << size;
  }
}

TEST(MergeTraces, LeavesOutRanksOfALargerRunBefore) {
  const TemporaryFolder folder;
  for (const int rank : {0, 1, 2}) write_trace(folder, rank, 1);
  EXPECT_THAT(merge_traces(folder.path(), 2).ranks, ElementsAre(0, 1));
  EXPECT_EQ(spans_by_rank(folder).size(), 2u);
}

TEST(MergeTraces, SaysWhatIsMissingAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<ConfigError>([&] { merge_traces(folder.path()); }),
              ::testing::AllOf(HasSubstr("has no traces of ranks"), HasSubstr("trace_rank_00000.json")));
  EXPECT_THAT(error_of<ConfigError>([&] { merge_traces(folder.path() + "/none"); }), HasSubstr("cannot read"));
  std::filesystem::create_directory(trace_path(folder.path(), 0));
  EXPECT_ANY_THROW(merge_traces(folder.path()));
  EXPECT_FALSE(std::filesystem::exists(merged_trace_path(folder.path())));
  EXPECT_FALSE(std::filesystem::exists(merged_trace_path(folder.path()) + ".part"));
}

}  // namespace
}  // namespace braid
