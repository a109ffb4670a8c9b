#include "run/recipe.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string error_of(const std::string& yaml, const std::vector<ConfigOverride>& overrides = {}) {
  return testing::error_of([&] { parse_recipe(yaml, overrides); });
}

const std::string kTwoGrids = R"(
topology:
  modules:
    images: {kind: encoder, dp: 2}
    language: {tp: 2, dp: 2}
train: {micro_batch: 4, global_batch: 32}
)";

TEST(Recipe, FillsInDefaults) {
  const Recipe recipe = parse_recipe(kTwoGrids);
  EXPECT_EQ(recipe.topology.modules.at(1).tp, 2);
  EXPECT_EQ(recipe.train.global_batch, 32);
  EXPECT_EQ(recipe.dist.hang_limit_s, 300);
  EXPECT_EQ(recipe.dist.silence_limit_s, 30);
}

TEST(Recipe, RecomputeIsAListAndWasABool) {
  const auto recompute = [](const std::string& value) {
    return parse_recipe(kTwoGrids, {{"model.recompute", value}}).model.recompute;
  };
  EXPECT_THAT(parse_recipe(kTwoGrids).model.recompute, IsEmpty());
  EXPECT_THAT(recompute("true"), ElementsAre("full"));
  EXPECT_THAT(recompute("false"), IsEmpty());
  EXPECT_THAT(recompute("[norms, vision]"), ElementsAre("norms", "vision"));
  EXPECT_THAT(recompute("experts,mamba"), ElementsAre("experts", "mamba"));
  EXPECT_THAT(to_yaml(parse_recipe(kTwoGrids, {{"model.recompute", "true"}})), HasSubstr("recompute: [full] "));
  EXPECT_THAT(error_of(kTwoGrids, {{"model.recompute", "attention"}}), HasSubstr("not 'attention'"));
}

TEST(Recipe, RecomputeIsTrueOrFalseOrAListOfParts) {
  for (const char* value : {"true,false", "[false, norms]", "true,norms", "full,true"})
    EXPECT_THAT(error_of(kTwoGrids, {{"model.recompute", value}}),
                AllOf(HasSubstr("cannot be combined with other names"), HasSubstr("command line, --model.recompute"),
                      HasSubstr("fix:   use true, false, or some of full, norms, activations, experts, mamba, vision")))
        << value;
  EXPECT_THAT(error_of(kTwoGrids, {{"model.recompute", "norms,norms"}}),
              AllOf(HasSubstr("recompute names 'norms' twice"), HasSubstr("fix:   keep one of them")));
  EXPECT_THAT(error_of(kTwoGrids, {{"model.recompute", "nroms"}}), HasSubstr("fix:   did you mean 'norms'?"));
}

TEST(Recipe, RecomputeNamesPartsOfTheModelThatRuns) {
  const std::string text_only = "topology: {modules: {language: }}";
  EXPECT_THAT(error_of(text_only, {{"model.recompute", "norms,vision"}}),
              AllOf(HasSubstr("recompute=norms,vision, but this model has no vision to compute again"),
                    HasSubstr("where: command line, --model.recompute"),
                    EndsWith("fix:   use some of full, norms, activations, experts, mamba")));
  EXPECT_THAT(error_of(text_only + "\nmodel: {provider: tiny-llava, recompute: [experts, mamba, norms]}"),
              AllOf(HasSubstr("this model has no experts or mamba"), HasSubstr("recipe:2, model.recompute"),
                    EndsWith("fix:   use some of full, norms, activations")));
  const std::string two_layers = text_only + "\nmodel: {language: {pattern: M*}}";
  EXPECT_THAT(error_of(two_layers, {{"model.recompute", "experts"}}), EndsWith("use some of full, norms, mamba"));
  EXPECT_THAT(parse_recipe(two_layers, {{"model.recompute", "mamba"}}).model.recompute, ElementsAre("mamba"));
}

TEST(Recipe, PrintedRecipeReadsBackTheSame) {
  const std::string printed = to_yaml(parse_recipe(kTwoGrids, {{"train.lr", "0.125"}}));
  EXPECT_EQ(to_yaml(parse_recipe(printed)), printed);
  EXPECT_THAT(printed, HasSubstr("lr: 0.125"));
}

TEST(Recipe, PrintedRecipeHasTheMediaOfTheEncodersThatRun) {
  EXPECT_THAT(to_yaml(parse_recipe(kTwoGrids)), HasSubstr("  media:\n    images:\n      share: 0.5 "));
  EXPECT_THAT(to_yaml(parse_recipe("topology: {modules: {language: }}")), Not(HasSubstr("share:")));
}

TEST(Recipe, OverridesWinAndAreBlamedOnTheCommandLine) {
  EXPECT_EQ(parse_recipe(kTwoGrids, {{"topology.modules.language.dp", "4"}}).topology.modules.at(1).dp, 4);
  EXPECT_THAT(error_of(kTwoGrids, {{"train.iterations", "many"}}), HasSubstr("command line, --train.iterations"));
}

TEST(Recipe, AFlagThatConflictsWithTheRecipeIsNamedWithIt) {
  EXPECT_THAT(error_of(kTwoGrids, {{"train.lr", "1"}, {"topology.modules.language.dp", "64", "--llm-dp"}}),
              HasSubstr("where: command line, --llm-dp, against recipe:6, train.global_batch\n"));
  // Removing either one would be enough.
  EXPECT_THAT(
      error_of(kTwoGrids, {{"topology.modules.language.dp", "4", "--llm-dp"}, {"train.micro_batch", "16"}}),
      HasSubstr("where: command line, --llm-dp and --train.micro_batch, against recipe:6, train.global_batch\n"));
  // Without --llm-ep the topology would be invalid and the model would not be checked, so --llm-ep is not the cause.
  const std::string sizes = "topology: {modules: {language: {tp: 2, dp: 2, ep: 2}}}";
  const std::vector<ConfigOverride> smaller = {{"topology.modules.language.tp", "3", "--llm-tp"},
                                               {"topology.modules.language.dp", "1", "--llm-dp"},
                                               {"topology.modules.language.ep", "1", "--llm-ep"}};
  EXPECT_THAT(error_of(sizes, smaller),
              HasSubstr("where: command line, --llm-tp, against recipe, model.language.vocab\n"));
  EXPECT_THAT(error_of(kTwoGrids, {{"train.global_batch", "7"}}),
              HasSubstr("where: command line, --train.global_batch\n"));
  // If a flag's own key is named, the flag that it conflicts with is named too.
  EXPECT_THAT(error_of(sizes, {{"topology.modules.language.tp", "1", "--llm-tp"},
                               {"topology.modules.language.ep", "4", "--llm-ep"}}),
              HasSubstr("where: command line, --llm-ep (topology.modules.language.ep), with --llm-tp\n"));
  EXPECT_THAT(error_of("topology: {modules: {language: }}\ntrain: {global_batch: 0}", {{"train.lr", "1"}}),
              HasSubstr("where: recipe:2, train.global_batch\n"));
}

TEST(Recipe, MinLrKeepsItsShareOfALowerLrFromTheCommandLine) {
  const auto min_lr = [](const std::vector<ConfigOverride>& overrides) {
    return parse_recipe("topology: {modules: {language: }}\ntrain: {lr: 3e-3, min_lr: 3e-4}", overrides)
        .train.schedule.min_lr;
  };
  EXPECT_EQ(min_lr({{"train.lr", "1e-4"}}), 1e-5);
  EXPECT_EQ(min_lr({{"train.lr", "1e-3"}}), 3e-4);
  EXPECT_EQ(min_lr({{"train.lr", "0"}}), 0);
  EXPECT_THROW(min_lr({{"train.lr", "1e-4"}, {"train.min_lr", "3e-4"}}), ConfigError);
  EXPECT_THROW(parse_recipe("topology: {modules: {language: }}\ntrain: {lr: 1e-4, min_lr: 3e-4}"), ConfigError);
}

TEST(Recipe, LengthsAndSeedsHave64Bits) {
  EXPECT_EQ(parse_recipe(kTwoGrids, {{"train.seed", "5000000000"}}).train.seed, 5'000'000'000);
  EXPECT_THAT(error_of(kTwoGrids, {{"train.seed", "-1"}}), HasSubstr("train.seed=-1 must be at least 0"));
  const Recipe recipe = parse_recipe(
      kTwoGrids,
      {{"train.samples", "5000000000"}, {"train.warmup_samples", "3000000000"}, {"train.decay_samples", "4000000000"}});
  EXPECT_EQ(iterations_of(length_of(recipe.train)), 156'250'000);
  EXPECT_EQ(resolve(recipe.train.schedule, length_of(recipe.train)).lr_warmup_steps, 3'000'000'000);
  EXPECT_THAT(error_of(kTwoGrids, {{"train.iterations", "9000000000000000000"}}),
              AllOf(HasSubstr("iterations=9000000000000000000 is out of range"), HasSubstr("--train.iterations"),
                    HasSubstr("at most 281474976710656")));  // 2^53 samples of 32 in each
}

TEST(Recipe, TopologyAndTrainingProblemsComeTogether) {
  EXPECT_THAT(
      error_of(kTwoGrids, {{"train.global_batch", "33"}, {"train.lr", "-1"}, {"topology.modules.images.dp", "3"}}),
      AllOf(HasSubstr("global_batch=33"), HasSubstr("lr=-1"), HasSubstr("images"), HasSubstr("problems")));
}

TEST(Recipe, ExpertsMustDivideOverEp) {
  EXPECT_THAT(error_of(kTwoGrids, {{"model.language.experts", "6"}, {"topology.modules.language.ep", "4"}}),
              AllOf(HasSubstr("6"), HasSubstr("ep"), HasSubstr("topology.modules.language")));
}

TEST(Recipe, AProviderBringsItsSizesAndTheRecipeChangesThem) {
  const Recipe recipe = parse_recipe(
      kTwoGrids,
      {{"model.provider", "nemotron-vlm-20l"}, {"model.language.experts", "16"}, {"model.images.encoder.layers", "4"}});
  const auto& language = std::get<HybridLmConfig>(recipe.model.model.language);
  EXPECT_EQ(language.hidden, 2688);
  EXPECT_EQ(language.experts, 16);
  EXPECT_EQ(std::get<RadioConfig>(recipe.model.model.encoders[0].model).layers, 4);
  EXPECT_EQ(to_yaml(parse_recipe(to_yaml(recipe))), to_yaml(recipe));
}

TEST(Recipe, Fp8IsForAHybridLanguageModelInBfloat16) {
  const std::string one_grid = "topology: {modules: {language: }}";
  const auto fp8_of = [](const Recipe& recipe) {
    return std::get<HybridLmConfig>(recipe.model.model.language).fp8 == Fp8Mode::Rowwise;
  };
  EXPECT_FALSE(fp8_of(parse_recipe(one_grid)));
  EXPECT_TRUE(fp8_of(parse_recipe(one_grid, {{"model.fp8", "rowwise"}})));
  EXPECT_THAT(error_of(one_grid, {{"model.fp8", "rowwise"}, {"model.dtype", "float32"}}),
              AllOf(HasSubstr("needs a model in bfloat16"), HasSubstr("model.fp8")));
  EXPECT_THAT(error_of(one_grid, {{"model.fp8", "rowwise"}, {"model.provider", "tiny-llava"}}),
              AllOf(HasSubstr("needs a hybrid language model"), HasSubstr("model.fp8")));
}

TEST(Recipe, PiecesOfRowsNeedExperts) {
  const std::string one_grid = "topology: {modules: {language: }}";
  EXPECT_EQ(parse_recipe(one_grid, {{"model.expert_overlap_pieces", "2"}}).model.overlap.expert_pieces, 2);
  EXPECT_THAT(
      error_of(one_grid, {{"model.expert_overlap_pieces", "2"}, {"model.provider", "tiny-llava"}}),
      AllOf(HasSubstr("expert_overlap_pieces=2 needs a model with experts"), HasSubstr("model.expert_overlap_pieces")));
  EXPECT_THAT(error_of(one_grid, {{"model.expert_overlap_pieces", "-1"}}), HasSubstr("must be at least 1"));
}

TEST(Recipe, PiecesOfLinearMapsNeedSequenceParallelism) {
  const std::string one_grid = "topology: {modules: {language: }}";
  const auto pieces_of = [&](std::vector<ConfigOverride> overrides) {
    return parse_recipe(one_grid, overrides).model.overlap.tp_pieces;
  };
  EXPECT_EQ(pieces_of({}), 1);
  EXPECT_EQ(pieces_of({{"model.tp_overlap_pieces", "3"}, {"model.sequence_parallel", "true"}}), 3);
  EXPECT_THAT(error_of(one_grid, {{"model.tp_overlap_pieces", "2"}}),
              AllOf(HasSubstr("tp_overlap_pieces=2 needs sequence parallelism"), HasSubstr("sequence_parallel=true")));
  EXPECT_THAT(error_of(one_grid, {{"model.tp_overlap_pieces", "0"}}),
              AllOf(HasSubstr("tp_overlap_pieces=0 must be at least 1"), HasSubstr("model.tp_overlap_pieces")));
}

// YAML 1.1 reads a bare `off` as false, YAML 1.2 as text.
TEST(Recipe, Fp8IsAWordAndNotABool) {
  const std::string one_grid = "topology: {modules: {language: }}\n";
  EXPECT_EQ(parse_recipe(one_grid + "model:\n  fp8: off\n").model.fp8, Fp8Mode::Off);
  EXPECT_EQ(parse_recipe(one_grid + "model: {fp8: \"off\"}").model.fp8, Fp8Mode::Off);
  EXPECT_EQ(parse_recipe(to_yaml(parse_recipe(one_grid))).model.fp8, Fp8Mode::Off);
  for (const char* word : {"true", "false"})
    EXPECT_THAT(error_of(one_grid + "model:\n  fp8: " + word),
                AllOf(HasSubstr(fmt::format("fp8 should be one of off, rowwise, not '{}'", word)),
                      HasSubstr("recipe:3, model.fp8"), HasSubstr("fix:   use off or rowwise")));
  EXPECT_THAT(error_of(one_grid, {{"model.fp8", "rowise"}}), HasSubstr("fix:   did you mean 'rowwise'?"));
}

TEST(Recipe, ModelMustFitItsGrids) {
  EXPECT_THAT(error_of(kTwoGrids, {{"topology.modules.language.tp", "3"}}), HasSubstr("model.language.kv_heads"));
  EXPECT_THAT(error_of(kTwoGrids, {{"topology.modules.images.tp", "8"}}), HasSubstr("model.images.encoder.heads"));
  EXPECT_THAT(error_of("topology: {modules: {image: {kind: encoder}, language: {}}}"),
              AllOf(HasSubstr("tiny-vlm has no encoder 'image'"), HasSubstr("did you mean 'images'?")));
  EXPECT_THAT(error_of(kTwoGrids, {{"data.sequence_length", "63"}}), HasSubstr("data.sequence_length"));
  EXPECT_THAT(error_of(kTwoGrids + "data: {media: {sound: {share: 2}}}\n"),
              AllOf(HasSubstr("no encoder 'sound'"), HasSubstr("share=2")));
}

TEST(Recipe, TrainingStagesAndFlagsDecideWhatIsFrozen) {
  const auto frozen = [](const std::vector<ConfigOverride>& overrides) {
    return frozen_sets(parse_recipe(kTwoGrids, overrides));
  };
  EXPECT_THAT(frozen({}), IsEmpty());
  EXPECT_THAT(frozen({{"train.stage", "stage1"}}), ElementsAre("images.encoder", "language"));
  EXPECT_THAT(frozen({{"train.stage", "stage2"}}), ElementsAre("images.encoder"));
  EXPECT_THAT(frozen({{"train.freeze_projection", "true"}, {"train.freeze_encoders", "true"}}),
              ElementsAre("images.encoder", "images.projector"));
  EXPECT_THAT(error_of(kTwoGrids, {{"train.stage", "stage1"}, {"train.freeze_projection", "true"}}),
              HasSubstr("nothing to train"));
  EXPECT_THAT(error_of("topology: {modules: {language: {}}}", {{"train.stage", "stage1"}}),
              HasSubstr("nothing to train"));
}

TEST(Recipe, WsdNeedsItsParameters) {
  EXPECT_THAT(error_of(kTwoGrids, {{"train.decay_style", "WSD"}}),
              AllOf(HasSubstr("train.wsd_decay_samples"), HasSubstr("train.wsd_decay_style")));
}

TEST(Recipe, UnknownKeysAndTypesNameTheLine) {
  EXPECT_THAT(error_of("topology:\n  modules:\n    language: {tq: 2}\ntrain:\n  lr: fast\n"),
              AllOf(HasSubstr("unknown key 'tq'"), HasSubstr("did you mean 'tp'?"), HasSubstr("recipe:3"),
                    HasSubstr("lr should be a number, not 'fast'"), HasSubstr("recipe:5")));
}

TEST(Recipe, AKeyInTheWrongSectionIsFoundInTheRightOne) {
  EXPECT_THAT(error_of(kTwoGrids, {{"train.log_interval", "5"}}),
              AllOf(HasSubstr("unknown key 'log_interval'"), HasSubstr("did you mean 'log.interval'?")));
  EXPECT_THAT(error_of(kTwoGrids, {{"data.packing_buffer", "5"}}), HasSubstr("did you mean 'loader.packing_buffer'?"));
  EXPECT_THAT(error_of(kTwoGrids, {{"train.lrr", "5"}}), HasSubstr("did you mean 'lr'?"));
}

// Their other settings are those of the commands in cli/from_hetero_test.cpp.
TEST(Recipe, TheProductionRunsResumeAfterEachJob) {
  struct Run {
    const char* name;
    int ranks, iterations;
  };
  for (const auto& [name, ranks, iterations] :
       {Run{"9n-gbs768", 72, 47684}, Run{"33n", 264, 158946}, Run{"68n", 544, 158946}, Run{"100n", 800, 158946}}) {
    SCOPED_TRACE(name);
    const Recipe recipe = load_recipe(fmt::format("{}/recipes/nemotron-vlm-54l-{}.yaml", BRAID_SOURCE_DIR, name));
    EXPECT_EQ(recipe.data.mock, MockChoice::False);  // it needs a data set, or --mock-data
    EXPECT_EQ(recipe.topology.world_size, ranks);
    EXPECT_EQ(iterations_of(length_of(recipe.train)), iterations);
    EXPECT_EQ(parse_wall_time(recipe.cluster.time), std::chrono::hours(4));
    EXPECT_TRUE(recipe.cluster.requeue);
    EXPECT_EQ(recipe.checkpoint.save, recipe.checkpoint.load);  // otherwise it could not resume
  }
}

}  // namespace
}  // namespace braid
