#include "models/providers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> sentences(const std::vector<Problem>& problems) {
  std::vector<std::string> whats;
  for (const Problem& problem : problems) whats.push_back(problem.what);
  return whats;
}

int count(const std::string& letters, char letter) {
  return static_cast<int>(std::count(letters.begin(), letters.end(), letter));
}

TEST(Providers, AreFoundByName) {
  for (const Provider& p : providers()) EXPECT_EQ(&provider(p.name), &p);
  EXPECT_THAT(error_of([] { provider("nemotron-moe-vlm-20l"); }), HasSubstr("did you mean 'nemotron-vlm-20l'?"));
  EXPECT_THAT(error_of([] { provider("gpt"); }), AllOf(HasSubstr("nemotron-vlm-54l"), HasSubstr("tiny-vlm")));
}

TEST(Providers, FitTogetherOnOneRank) {
  for (const Provider& p : providers()) EXPECT_THAT(sentences(validate(p, {}, {})), IsEmpty()) << p.name;
}

TEST(Providers, NemotronLayersAreThoseOfTheReference) {
  const std::string small = layer_letters(provider("nemotron-vlm-20l").language);
  const std::string large = layer_letters(provider("nemotron-vlm-54l").language);
  EXPECT_EQ(small.size(), 20u);
  EXPECT_EQ(large.size(), 54u);
  EXPECT_THAT((std::vector<int>{count(small, 'M'), count(small, 'E'), count(small, '*')}),
              ::testing::ElementsAre(9, 8, 3));
  EXPECT_THAT((std::vector<int>{count(large, 'M'), count(large, 'E'), count(large, '*')}),
              ::testing::ElementsAre(23, 23, 8));
  for (const std::size_t layer : {5, 10, 15, 20, 27, 34, 41, 48}) EXPECT_EQ(large[layer], '*') << layer;
}

// The layouts of the public recipes, and the one with every kind of split.
TEST(Providers, NemotronRunsInTheLayoutsOfItsRecipes) {
  for (const char* name : {"nemotron-vlm-20l", "nemotron-vlm-54l"})
    for (const LayoutSizes& language :
         {LayoutSizes{.tp = 2, .ep = 4}, LayoutSizes{.tp = 4, .ep = 16}, LayoutSizes{.tp = 2, .ep = 16},
          LayoutSizes{.tp = 2, .ep = 8}, LayoutSizes{.tp = 2, .cp = 4, .ep = 8, .expt_tp = 2, .pp = 4}})
      EXPECT_THAT(sentences(validate(provider(name), language, {.tp = 2, .pp = 2})), IsEmpty()) << name;
}

TEST(Providers, TinySplitsEveryWay) {
  const Provider& tiny = provider("tiny-vlm");
  for (const char letter : {'M', '*', 'E', '-'}) EXPECT_GE(count(tiny.language.pattern, letter), 1) << letter;
  for (const int tp : {1, 2, 4})
    for (const int cp : {1, 2})
      for (const int ep : {1, 2, 4})
        for (const int pp : {1, 2, 3})
          EXPECT_THAT(
              sentences(validate(tiny, {.tp = tp, .cp = cp, .ep = ep, .expt_tp = 2, .pp = pp}, {.tp = tp, .pp = pp})),
              IsEmpty());
}

TEST(Providers, EveryPartIsCheckedAgainstItsLayout) {
  const Provider& tiny = provider("tiny-vlm");
  EXPECT_THAT(error_of([&] { throw ConfigError(validate(tiny, {.tp = 3}, {.tp = 8, .cp = 2})); }),
              AllOf(HasSubstr("tiny-vlm.language.kv_heads"), HasSubstr("tiny-vlm.vision.heads"),
                    HasSubstr("RADIO does not run with cp=2")));
  Provider misfit = tiny;
  misfit.projector.input = 32;
  misfit.language.hidden = 128;
  EXPECT_THAT(sentences(validate(misfit, {}, {})),
              ::testing::ElementsAre("the projector takes 32 channels, the encoder gives 128",
                                     "the projector gives 64 channels, the language model takes 128"));
}

TEST(Providers, ImageTokenIsInTheVocabulary) {
  for (const Provider& p : providers()) {
    EXPECT_EQ(image_token_id(p, std::nullopt), 511) << p.name;
    EXPECT_EQ(image_token_id(p, 18), 18);
    EXPECT_EQ(image_token_id(p, p.language.vocab - 1), p.language.vocab - 1);
    // A tokenizer that had to add the token gives it the first id behind its vocabulary.
    EXPECT_THAT(error_of([&] { image_token_id(p, p.language.vocab); }),
                AllOf(HasSubstr("'<image>'"), HasSubstr(std::to_string(p.language.vocab)),
                      HasSubstr("added behind the vocabulary")));
    EXPECT_THAT(error_of([&] { image_token_id(p, -1); }), HasSubstr("use an id from 0 to"));
  }
}

}  // namespace
}  // namespace braid
