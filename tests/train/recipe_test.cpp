#include "train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
}

TEST(Recipe, PrintedRecipeReadsBackTheSame) {
  const std::string printed = to_yaml(parse_recipe(kTwoGrids, {{"train.lr", "0.125"}}));
  EXPECT_EQ(to_yaml(parse_recipe(printed)), printed);
  EXPECT_THAT(printed, HasSubstr("lr: 0.125"));
}

TEST(Recipe, OverridesWinAndAreBlamedOnTheCommandLine) {
  EXPECT_EQ(parse_recipe(kTwoGrids, {{"topology.modules.language.dp", "4"}}).topology.modules.at(1).dp, 4);
  EXPECT_THAT(error_of(kTwoGrids, {{"train.iterations", "many"}}), HasSubstr("command line, --train.iterations"));
}

TEST(Recipe, TopologyAndTrainingProblemsComeTogether) {
  EXPECT_THAT(
      error_of(kTwoGrids, {{"train.global_batch", "33"}, {"train.lr", "0"}, {"topology.modules.images.dp", "3"}}),
      AllOf(HasSubstr("global_batch=33"), HasSubstr("train.lr=0"), HasSubstr("images"), HasSubstr("problems")));
}

TEST(Recipe, ExpertsMustDivideOverEp) {
  EXPECT_THAT(error_of(kTwoGrids, {{"model.num_experts", "6"}, {"topology.modules.language.ep", "4"}}),
              AllOf(HasSubstr("6"), HasSubstr("ep"), HasSubstr("topology.modules.language")));
}

TEST(Recipe, UnknownKeysAndTypesNameTheLine) {
  EXPECT_THAT(error_of("topology:\n  modules:\n    language: {tq: 2}\ntrain:\n  lr: fast\n"),
              AllOf(HasSubstr("unknown key 'tq'"), HasSubstr("did you mean 'tp'?"), HasSubstr("recipe:3"),
                    HasSubstr("lr should be a number, not 'fast'"), HasSubstr("recipe:5")));
}

}  // namespace
}  // namespace braid
