// One test per rule: the message for an invalid topology, its location, and which number to change.
#include <gmock/gmock.h>
#include "plan/topology.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Four encoder ranks and eight language ranks that are valid; each test breaks one thing.
TopologyConfig good() {
  return {.modules = {{.name = "images", .kind = ModuleKind::Encoder, .tp = 2, .dp = 2},
                      {.name = "language", .tp = 2, .dp = 4, .ep = 4}}};
}

Workload work() { return {.micro_batch = 2, .global_batch = 16, .num_experts = 8}; }

ModuleConfig& images(TopologyConfig& config) { return config.modules[0]; }
ModuleConfig& language(TopologyConfig& config) { return config.modules[1]; }

auto problem(const std::string& what, const std::string& where, const std::string& fix) {
  return testing::AllOf(Field("what", &Problem::what, HasSubstr(what)), Field("where", &Problem::where, where),
                        Field("fix", &Problem::fix, HasSubstr(fix)));
}

auto what(const std::string& text) { return Field("what", &Problem::what, HasSubstr(text)); }

TEST(ValidateTest, AGoodTopologyHasNoProblems) { EXPECT_THAT(validate(good(), work()), IsEmpty()); }

TEST(ValidateTest, ATopologyNeedsModules) {
  EXPECT_THAT(validate({}, work()),
              ElementsAre(problem("the topology has no modules", "topology.modules", "kind=language")));
}

// --- sizes

TEST(ValidateTest, SizesBeginAtOne) {
  TopologyConfig config = good();
  language(config).tp = 0;
  language(config).ep = -4;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("module 'language' has tp=0", "topology.modules.language.tp", "use tp=1 or more"),
                          problem("module 'language' has ep=-4", "topology.modules.language.ep", "use ep=1 or more")));
}

TEST(ValidateTest, EverySizeIsChecked) {
  TopologyConfig config = good();
  language(config) = {
      .name = "language", .ranks = 0, .tp = 0, .cp = 0, .dp = 0, .pp = 0, .ep = 0, .expt_tp = 0, .expt_dp = 0};
  EXPECT_THAT(validate(config, work()), SizeIs(8));
}

TEST(ValidateTest, OffsetsAreNotNegative) {
  TopologyConfig config = good();
  language(config).rank_offset = -4;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("module 'language' has rank_offset=-4", "topology.modules.language.rank_offset",
                                  "use rank_offset=0 or more, or leave it out")));
}

TEST(ValidateTest, WorldSizeBeginsAtOne) {
  TopologyConfig config = good();
  config.world_size = 0;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("world_size=0", "topology.world_size", "use world_size=1")));
}

TEST(ValidateTest, RanksMustBeTheProductOfTheSizes) {
  TopologyConfig config = good();
  images(config).ranks = 8;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("module 'images' has ranks=8, but tp=2 x cp=1 x dp=2 x pp=1 is 4",
                                  "topology.modules.images.ranks", "use ranks=4 or images.dp=4")));
  images(config).ranks = 5;  // which no dp can give with tp=2
  EXPECT_EQ(validate(config, work())[0].fix, "use ranks=4");
  images(config).ranks = 4;
  EXPECT_THAT(validate(config, work()), IsEmpty());
}

TEST(ValidateTest, AbsurdSizesGetASentence) {
  TopologyConfig config = good();
  language(config).tp = 1000000000;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("tp=1000000000 x cp=1 x dp=4 x pp=1 ranks, but a run can have at most 131072",
                                  "topology.modules.language", "use tp=32768 or less")));
  const int most = 2147483647;
  language(config) = {.name = "language", .tp = most, .cp = most, .dp = most, .pp = most, .ep = most, .expt_tp = most};
  EXPECT_THAT(validate(config, {.micro_batch = most, .global_batch = most, .num_experts = most}),
              ElementsAre(problem("2147483647 x", "topology.modules.language", "use smaller sizes")));
}

TEST(ValidateTest, AbsurdWorkloadsAndExpertViewsGetASentence) {
  const int most = 2147483647;
  TopologyConfig config = good();
  language(config).ep = most;
  language(config).expt_dp = most;
  EXPECT_THAT(validate(config, {.micro_batch = most, .global_batch = most, .num_experts = most - 1}),
              ElementsAre(what("ep=2147483647"), what("num_experts=2147483646 is not a multiple of"),
                          what("global_batch=2147483647 is not a multiple of")));
}

TEST(ValidateTest, AbsurdOffsetsAndWorldsGetASentence) {
  TopologyConfig config = good();
  language(config).rank_offset = 2147483647;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("no module uses ranks 4-2147483646", "topology.modules.language.rank_offset",
                                  "use language.rank_offset=4"),
                          problem("rank 2147483654 is beyond the largest possible world of 131072",
                                  "topology.modules.language.rank_offset", "use a smaller rank_offset")));
  config = good();
  config.world_size = 2147483647;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("no module uses ranks 12-2147483646", "topology.world_size", "use world_size=12")));
}

TEST(ValidateTest, ModulesTogetherStayBelowTheLargestWorld) {
  TopologyConfig config = good();
  images(config).tp = 1 << 16;
  config.world_size = (1 << 17) + 8;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("rank 131079 is beyond the largest possible world of 131072",
                                  "topology.modules.language.rank_offset", "use a smaller rank_offset")));
}

// --- names and kinds

TEST(ValidateTest, NamesAreUnique) {
  TopologyConfig config = good();
  images(config).name = "language";
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("two modules are called 'language'", "topology.modules.language", "rename")));
}

TEST(ValidateTest, NamesAreNotEmpty) {
  TopologyConfig config = good();
  images(config).name = "";
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("a module has no name", "topology.modules", "give it a name")));
}

// A dot would make both keys and group names ambiguous.
TEST(ValidateTest, NamesAreMadeOfLettersDigitsAndDashes) {
  TopologyConfig config = good();
  images(config).name = "left.eye";
  EXPECT_THAT(validate(config, work()), ElementsAre(problem("the module name 'left.eye'", "topology.modules.left.eye",
                                                            "rename it, e.g. to 'left_eye'")));
}

TEST(ValidateTest, OneModuleIsTheLanguageModel) {
  TopologyConfig config = good();
  language(config).kind = ModuleKind::Encoder;
  EXPECT_THAT(validate(config, work()), ElementsAre(problem("no module is the language model", "topology.modules",
                                                            "give kind=language to one of 'images', 'language'")));
}

TEST(ValidateTest, OnlyOneModuleIsTheLanguageModel) {
  TopologyConfig config = good();
  images(config).kind = ModuleKind::Language;
  EXPECT_THAT(validate(config, work()), ElementsAre(problem("2 modules are the language model: 'images', 'language'",
                                                            "topology.modules.language.kind", "kind=encoder")));
}

// --- the expert view

TEST(ValidateTest, ExpertParallelSizeDividesTheGrid) {
  TopologyConfig config = good();
  language(config).ep = 3;
  EXPECT_THAT(
      validate(config, {.micro_batch = 2, .global_batch = 16, .num_experts = 12}),
      ElementsAre(problem("module 'language' has expt_tp=1 x ep=3 (= 3), which does not divide its tp x cp x dp = 8",
                          "topology.modules.language.ep", "use ep=2 or ep=4")));
}

TEST(ValidateTest, ExpertTensorParallelSizeDividesTheGrid) {
  TopologyConfig config = good();
  language(config).expt_tp = 16;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("module 'language' has expt_tp=16, which does not divide its tp x cp x dp = 8",
                                  "topology.modules.language.expt_tp", "use expt_tp=8")));
}

TEST(ValidateTest, ExpertViewFillsTheGrid) {
  TopologyConfig config = good();
  language(config).pp = 2;
  language(config).expt_dp = 4;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("expt_tp=1 x ep=4 x expt_dp=4 x pp=2, which is not its 16 ranks",
                                  "topology.modules.language.expt_dp", "use expt_dp=2, or leave it out")));
}

TEST(ValidateTest, EncodersHaveAnExpertViewToo) {
  TopologyConfig config = good();
  images(config).ep = 3;
  EXPECT_THAT(validate(config, work()), ElementsAre(problem("module 'images' has expt_tp=1 x ep=3",
                                                            "topology.modules.images.ep", "ep=2 or ep=4")));
}

// --- placement

TEST(ValidateTest, ModulesDoNotOverlap) {
  TopologyConfig config = good();
  language(config).rank_offset = 2;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("modules 'images' (ranks 0-3) and 'language' (ranks 2-9) both claim ranks 2-3",
                                  "topology.modules.language.rank_offset", "use language.rank_offset=4")));
}

TEST(ValidateTest, OverlapIsFoundWhicheverModuleComesFirst) {
  TopologyConfig config = good();
  images(config).rank_offset = 7;
  language(config).rank_offset = 0;
  EXPECT_THAT(validate(config, work()), ElementsAre(problem("both claim rank 7", "topology.modules.images.rank_offset",
                                                            "use images.rank_offset=8")));
}

TEST(ValidateTest, RanksBetweenModulesAreNamed) {
  TopologyConfig config = good();
  language(config).rank_offset = 7;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("no module uses ranks 4-6", "topology.modules.language.rank_offset",
                                  "use language.rank_offset=4")));
}

TEST(ValidateTest, RanksBeforeTheFirstModuleAreNamed) {
  TopologyConfig config = good();
  images(config).rank_offset = 1;
  EXPECT_THAT(
      validate(config, work()),
      ElementsAre(problem("no module uses rank 0", "topology.modules.images.rank_offset", "images.rank_offset=0")));
}

TEST(ValidateTest, RanksBehindTheLastModuleAreNamed) {
  TopologyConfig config = good();
  config.world_size = 20;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("no module uses ranks 12-19 of the world of 20", "topology.world_size",
                                  "use world_size=12 or language.dp=8")));
}

TEST(ValidateTest, ModulesStayInsideTheWorld) {
  TopologyConfig config = good();
  config.world_size = 8;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("module 'language' has ranks 4-11, but rank 11 is beyond the world of 8",
                                  "topology.world_size", "use world_size=12 or language.dp=2")));
}

TEST(ValidateTest, ColocatedModulesHaveTheSameSize) {
  TopologyConfig config = good();
  config.colocated = true;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("'images' has ranks 0-3 and 'language' has ranks 0-7", "topology.modules.language",
                                  "use language.dp=2 or images.dp=4")));
}

TEST(ValidateTest, ColocatedModulesBeginAtTheSameRank) {
  TopologyConfig config = good();
  config.colocated = true;
  images(config).dp = 4;
  language(config).rank_offset = 4;
  EXPECT_THAT(validate(config, work()),
              ElementsAre(problem("'images' has ranks 0-7 and 'language' has ranks 4-11",
                                  "topology.modules.language.rank_offset", "use rank_offset=0")));
}

// --- the workload

TEST(ValidateTest, ExpertsDivideOverTheirRanks) {
  EXPECT_THAT(validate(good(), {.micro_batch = 2, .global_batch = 16, .num_experts = 10}),
              ElementsAre(problem("num_experts=10 is not a multiple of language.ep=4", "topology.modules.language.ep",
                                  "use ep=2")));
}

TEST(ValidateTest, ExpertParallelNeedsExperts) {
  EXPECT_THAT(validate(good(), {.micro_batch = 2, .global_batch = 16, .num_experts = 0}),
              ElementsAre(problem("module 'language' has ep=4, but the model has no experts",
                                  "topology.modules.language.ep", "use ep=1")));
}

TEST(ValidateTest, GlobalBatchDividesIntoMicrobatches) {
  EXPECT_THAT(
      validate(good(), {.micro_batch = 4, .global_batch = 24, .num_experts = 8}),
      ElementsAre(problem("global_batch=24 is not a multiple of language.dp=4 x micro_batch=4 (= 16)",
                          "train.global_batch", "use global_batch=16 or global_batch=32, or use micro_batch=3")));
}

TEST(ValidateTest, GlobalBatchHoldsAtLeastOneMicrobatchPerReplica) {
  EXPECT_THAT(validate(good(), {.micro_batch = 2, .global_batch = 3, .num_experts = 8}),
              ElementsAre(problem("global_batch=3", "train.global_batch", "use global_batch=8")));
}

TEST(ValidateTest, BatchesBeginAtOne) {
  EXPECT_THAT(validate(good(), {.micro_batch = 0, .global_batch = -16, .num_experts = -1}),
              ElementsAre(problem("micro_batch=0", "train.micro_batch", "use micro_batch=1"),
                          problem("global_batch=-16", "train.global_batch", "use global_batch=1"),
                          problem("num_experts=-1", "model.language.experts", "use num_experts=0")));
}

// dp 8 is twice the language model's 4, but its 4 samples do not feed 8 encoder replicas.
TEST(ValidateTest, SamplesDivideOverEncoderReplicas) {
  TopologyConfig config = good();
  images(config).dp = 8;
  EXPECT_THAT(validate(config, {.micro_batch = 1, .global_batch = 16, .num_experts = 8}),
              ElementsAre(problem("micro_batch=1 x language.dp=4 (= 4 samples) is not a multiple of images.dp=8",
                                  "topology.modules.images.dp", "use dp=4")));
  EXPECT_THAT(validate(config, work()), IsEmpty());
}

// 12 samples would divide over 3 encoder replicas, but each would serve one and a third language replicas.
TEST(ValidateTest, EncoderAndLanguageReplicasPairUp) {
  TopologyConfig config = good();
  images(config).dp = 3;
  EXPECT_THAT(validate(config, {.micro_batch = 3, .global_batch = 24, .num_experts = 8}),
              ElementsAre(problem("images.dp=3 and language.dp=4: the larger is not a multiple of the smaller",
                                  "topology.modules.images.dp", "use dp=2 or dp=4")));
}

TEST(ValidateTest, EveryEncoderIsChecked) {
  TopologyConfig config = good();
  images(config).dp = 3;
  config.modules.push_back({.name = "audio", .kind = ModuleKind::Encoder, .dp = 6});
  EXPECT_THAT(validate(config, {.micro_batch = 3, .global_batch = 24, .num_experts = 8}),
              ElementsAre(what("images.dp=3"), what("audio.dp=6")));
}

// --- several at once

TEST(ValidateTest, IndependentProblemsAreReportedTogether) {
  TopologyConfig config = good();
  config.world_size = 20;
  images(config).name = "left.eye";
  images(config).dp = 3;
  EXPECT_THAT(validate(config, {.micro_batch = 3, .global_batch = 16, .num_experts = 6}),
              ElementsAre(what("'left.eye'"), what("no module uses ranks 14-19"), what("num_experts=6"),
                          what("global_batch=16"), what("left.eye.dp=3")));
}

// If language.tp is invalid, its ranks and their work are unknown; the encoder's own mistake is still reported.
TEST(ValidateTest, AMeaninglessSizeHasNoFollowUps) {
  TopologyConfig config = good();
  config.world_size = 99;
  language(config).tp = 0;
  images(config).ep = 3;
  EXPECT_THAT(validate(config, {.micro_batch = 3, .global_batch = 16, .num_experts = 6}),
              ElementsAre(what("module 'images' has expt_tp=1 x ep=3"), what("module 'language' has tp=0")));
}

TEST(ValidateTest, TheTopologyRefusesWithEveryProblem) {
  TopologyConfig config = good();
  config.world_size = 20;
  try {
    Topology(config, {.micro_batch = 2, .global_batch = 17, .num_experts = 8});
    FAIL() << "no ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.problems(), SizeIs(2));
    EXPECT_THAT(e.what(), HasSubstr("2 problems"));
  }
}

}  // namespace
}  // namespace braid
