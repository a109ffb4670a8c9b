#include "models/providers.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

// All encoders in the same layout.
std::vector<std::string> problems_of(const Provider& provider, const LayoutSizes& language,
                                     const LayoutSizes& encoder) {
  std::vector<Problem> problems = validate_language(provider, language, provider.name);
  for (const EncoderConfig& config : provider.encoders)
    for (const Problem& problem : validate_encoder(provider, config, encoder, provider.name))
      problems.push_back(problem);
  return sentences(problems);
}

const HybridLmConfig& hybrid(const Provider& provider) { return std::get<HybridLmConfig>(provider.language); }

int count(const std::string& letters, char letter) {
  return static_cast<int>(std::count(letters.begin(), letters.end(), letter));
}

TEST(Providers, AreFoundByName) {
  for (const Provider& p : providers()) EXPECT_EQ(&provider(p.name), &p);
  EXPECT_THAT(error_of([] { provider("nemotron-moe-vlm-20l"); }), HasSubstr("did you mean 'nemotron-vlm-20l'?"));
  EXPECT_THAT(error_of([] { provider("gpt"); }), AllOf(HasSubstr("nemotron-vlm-54l"), HasSubstr("tiny-vlm")));
}

TEST(Providers, FitTogetherOnOneRank) {
  for (const Provider& p : providers()) EXPECT_THAT(problems_of(p, {}, {}), IsEmpty()) << p.name;
}

TEST(Providers, NemotronLayersAreThoseOfTheReference) {
  const std::string small = layer_letters(hybrid(provider("nemotron-vlm-20l")));
  const std::string large = layer_letters(hybrid(provider("nemotron-vlm-54l")));
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
      EXPECT_THAT(problems_of(provider(name), language, {.tp = 2, .pp = 2}), IsEmpty()) << name;
}

TEST(Providers, TinySplitsEveryWay) {
  const Provider& tiny = provider("tiny-vlm");
  for (const char letter : {'M', '*', 'E', '-'}) EXPECT_GE(count(hybrid(tiny).pattern, letter), 1) << letter;
  for (const int tp : {1, 2, 4})
    for (const int cp : {1, 2})
      for (const int ep : {1, 2, 4})
        for (const int pp : {1, 2, 3})
          EXPECT_THAT(problems_of(tiny, {.tp = tp, .cp = cp, .ep = ep, .expt_tp = 2, .pp = pp}, {.tp = tp, .pp = pp}),
                      IsEmpty());
}

TEST(Providers, EveryPartIsCheckedAgainstItsLayout) {
  const Provider& tiny = provider("tiny-vlm");
  EXPECT_THAT(error_of([&] { throw ConfigError(validate_language(tiny, {.tp = 3}, "model")); }),
              HasSubstr("model.language.kv_heads"));
  EXPECT_THAT(
      error_of([&] { throw ConfigError(validate_encoder(tiny, tiny.encoders[0], {.tp = 8, .cp = 2}, "model")); }),
      AllOf(HasSubstr("model.images.encoder.heads"), HasSubstr("RADIO does not support cp=2")));
  Provider misfit = tiny;
  misfit.encoders[0].projector.input = 32;
  std::get<HybridLmConfig>(misfit.language).hidden = 128;
  EXPECT_THAT(problems_of(misfit, {}, {}),
              ::testing::ElementsAre("the projector takes 32 channels, but the encoder produces 128",
                                     "the projector produces 64 channels, but the language model takes 128"));
}

// Images of one size are whole patches, with pixel shuffle whole squares of patches.
TEST(Providers, ImageSidesAreWholePatches) {
  Provider llava = provider("tiny-llava");
  EncoderConfig& images = llava.encoders[0];
  for (const bool shuffle : {false, true})
    for (const int side : {14, 28, 42, 50, 56}) {
      images.pixel_shuffle = shuffle;
      images.projector.input = shuffle ? 128 : 32;
      std::get<ClipConfig>(images.model).image_side = side;
      EXPECT_EQ(problems_of(llava, {}, {}).empty(), side % (shuffle ? 28 : 14) == 0) << side;
    }
}

TEST(Providers, ImageTokenIsInTheVocabulary) {
  for (const Provider& p : providers()) {
    const EncoderConfig& images = p.encoders[0];
    const int vocab = vocab_of(p.language);
    EXPECT_EQ(images.token_id, 511) << p.name;
    for (const auto& [id, why] : {std::pair{0, "fills up short sequences"}, {-1, "must be"}, {vocab, "must be"}}) {
      Provider other = p;
      other.encoders[0].token_id = id;
      EXPECT_THAT(problems_of(other, {}, {}),
                  ::testing::Contains(::testing::AllOf(HasSubstr(fmt::format("token_id={} ", id)), HasSubstr(why))));
    }
  }
}

}  // namespace
}  // namespace braid
