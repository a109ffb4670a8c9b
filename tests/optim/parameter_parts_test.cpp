// A set of two dense parameters, experts and a buffer on pp=2, tp=2, dp=2 ranks with ep=2: what each rank holds is
// small enough to count by hand.
#include "optim/parameter_parts.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/topology.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

const OptimizerConfig kConfig = {.pad_buckets = false};

Module module_of_eight_ranks() {
  const TopologyConfig config = {
      .modules = {{.name = "language", .kind = ModuleKind::Language, .tp = 2, .dp = 2, .pp = 2, .ep = 2}}};
  return Topology(config, {.global_batch = 4, .num_experts = 4}).language();
}

std::vector<ParamSpec> set_on_two_stages() {
  return {{.name = "split", .shape = {256, 4}, .tp_dim = 0},
          {.name = "whole", .shape = {256}},
          {.name = "experts", .shape = {4, 64, 2}, .expert = true},
          {.name = "buffer", .shape = {16}, .trainable = false},
          {.name = "last", .shape = {1024}, .stage = 1}};
}

std::vector<std::string> names_of(const std::vector<ParamSpec>& specs) {
  std::vector<std::string> names;
  for (const ParamSpec& spec : specs) names.push_back(spec.name);
  return names;
}

TEST(ParameterParts, DenseParametersAndExpertsOfTheRanksStage) {
  const Module module = module_of_eight_ranks();
  const std::vector<ParameterPart> first = parameter_parts(set_on_two_stages(), module, 3, kConfig);
  ASSERT_EQ(first.size(), 2);
  EXPECT_STREQ(first[0].group, "dp-cp");
  EXPECT_THAT(names_of(first[0].specs), ElementsAre("split", "whole"));
  EXPECT_EQ(first[0].layout.size, 128 * 4 + 256);
  EXPECT_EQ(first[0].shard, 1);  // rank 3 is tp 1 of dp 1
  EXPECT_EQ(first[0].owned(kConfig), first[0].layout.size / 2);
  EXPECT_STREQ(first[1].group, "expt_dp");
  EXPECT_THAT(names_of(first[1].specs), ElementsAre("experts"));
  EXPECT_EQ(first[1].layout.size, 2 * 64 * 2);

  const std::vector<ParameterPart> last = parameter_parts(set_on_two_stages(), module, 4, kConfig);
  ASSERT_EQ(last.size(), 1);  // no experts there
  EXPECT_THAT(names_of(last[0].specs), ElementsAre("last"));
}

// Memory and communication are counted from the same buckets.
TEST(ParameterParts, AreWhatMemoryAndCommunicationAreCountedFrom) {
  const Module module = module_of_eight_ranks();
  for (const bool zero : {true, false})
    for (const int rank : {3, 4}) {
      OptimizerConfig config = kConfig;
      config.zero = zero;
      const OptimizerMemory memory = optimizer_memory(set_on_two_stages(), module, rank, config, 2, /*trains=*/true);
      const OptimizerCollectives collectives(set_on_two_stages(), module, rank, config, 2);
      EXPECT_EQ(memory.gradients, 4 * collectives.elements().gradients);
      EXPECT_EQ(memory.main_copy, 4 * collectives.elements().updated);
      std::int64_t reduced = 0;
      for (const Collective& reduction : collectives.reductions(rank / 4)) reduced += reduction.bytes;
      EXPECT_EQ(memory.gradients, reduced);
    }
}

TEST(ParameterParts, CountWhatIsMultipliedInFp8) {
  std::vector<ParamSpec> set = set_on_two_stages();
  set[0].fp8 = set[2].fp8 = true;
  EXPECT_EQ(OptimizerCollectives(set, module_of_eight_ranks(), 3, kConfig, 2).elements().fp8, 128 * 4 + 2 * 64 * 2);
}

TEST(ParameterParts, ASetThatDoesNotTrainHasOnlyParameters) {
  const OptimizerMemory memory =
      optimizer_memory(set_on_two_stages(), module_of_eight_ranks(), 3, kConfig, 2, /*trains=*/false);
  EXPECT_EQ(memory.parameters, 2 * (128 * 4 + 256 + 2 * 64 * 2) + 4 * 16);  // the buffer is in fp32
  EXPECT_EQ(memory.gradients + memory.main_copy + memory.moments + memory.reductions, 0);
}

}  // namespace
}  // namespace braid
