#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/start.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kGb = 1'000'000'000;

// A rank needs about 61 GB on a GPU: tests/predict/memory_test.cpp.
Recipe two_replicas() {
  return parse_recipe(
      "topology: {modules: {language: {kind: language, dp: 2}}}\n"
      "model: {provider: nemotron-vlm-20l, dtype: bfloat16, language: {experts: 16}}\n"
      "data: {sequence_length: 8192}\n"
      "train: {micro_batch: 1, global_batch: 4}\n");
}

std::vector<Problem> problems_with(const HostRoom& room) {
  const Recipe recipe = two_replicas();
  return room_problems(recipe, Topology(recipe.topology, workload_of(recipe)), {0, 2}, room);
}

HostCapacity large_host() { return {.cores = 16, .memory_bytes = 1000 * kGb}; }

TEST(RoomProblems, AGpuThatIsTooSmallIsRefusedBeforeTheStart) {
  EXPECT_THAT(problems_with({large_host(), 2, 141 * kGb}), IsEmpty());
  EXPECT_THAT(problems_with({large_host(), 2, 0}), IsEmpty());  // unknown
  const std::vector<Problem> problems = problems_with({large_host(), 2, 40 * kGb});
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].what, AllOf(HasSubstr("rank 0 (language[tp=0 cp=0 dp=0 pp=0]) needs "),
                                      HasSubstr(" of GPU memory in backward of language"), HasSubstr("moments "),
                                      HasSubstr("but a GPU has 40.0 GB")));
  EXPECT_THAT(problems[0].fix, AllOf(HasSubstr("recompute: full saves"), HasSubstr("`braid plan memory`")));
}

TEST(RoomProblems, RanksThatShareAGpuShareItsMemory) {
  const std::vector<Problem> problems = problems_with({large_host(), 1, 80 * kGb});
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].what, HasSubstr("together with rank 1 on the same GPU, but a GPU has 80.0 GB"));
  EXPECT_THAT(problems_with({large_host(), 1, 80 * kGb, /*sees_all_gpus=*/false}), IsEmpty());
}

// A rank of the encoder needs about 10 GB, one of the language model about 60 GB. Local ranks 0 and 2 share a GPU, and
// so do 1 and 3.
TEST(RoomProblems, EachRankOfASharedGpuNeedsWhatItNeeds) {
  const auto problems_on = [](int gpus, std::int64_t gb) {
    const Recipe recipe = parse_recipe(
        "topology: {modules: {images: {kind: encoder, dp: 2}, language: {dp: 2}}}\n"
        "model: {provider: nemotron-vlm-20l, dtype: bfloat16, language: {experts: 16}}\n"
        "data: {sequence_length: 8192}\n"
        "train: {micro_batch: 1, global_batch: 4}\n");
    return room_problems(recipe, Topology(recipe.topology, workload_of(recipe)), {0, 4},
                         {large_host(), gpus, gb * kGb});
  };
  EXPECT_THAT(problems_on(2, 90), IsEmpty());
  EXPECT_THAT(problems_on(2, 60), SizeIs(1));
  const std::vector<Problem> all_on_one = problems_on(1, 90);
  ASSERT_THAT(all_on_one, SizeIs(1));
  EXPECT_THAT(all_on_one[0].what, HasSubstr("together with ranks 0, 1, "));
}

TEST(RoomProblems, WithoutGpusTheHostsMemoryCounts) {
  EXPECT_THAT(problems_with({large_host()}), IsEmpty());
  HostCapacity host = large_host();
  host.memory_bytes = 40 * kGb;
  ASSERT_THAT(problems_with({host}), SizeIs(1));
  EXPECT_THAT(problems_with({host, 2, 141 * kGb}), IsEmpty());
}

}  // namespace
}  // namespace braid
