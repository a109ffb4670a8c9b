#include "base/strings.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace braid {
namespace {

using testing::ElementsAre;
using testing::Optional;

TEST(SplitTest, KeepsEmptyParts) {
  EXPECT_THAT(split("a.b.c", '.'), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split("plain", '.'), ElementsAre("plain"));
  EXPECT_THAT(split("", '.'), ElementsAre(""));
  EXPECT_THAT(split(".a..", '.'), ElementsAre("", "a", "", ""));
}

TEST(ParseIntTest, TakesTheWholeTextOrNothing) {
  EXPECT_THAT(parse_int("42"), Optional(42));
  EXPECT_THAT(parse_int("-7"), Optional(-7));
  EXPECT_THAT(parse_int("2147483647"), Optional(2147483647));
  for (const char* text : {"", " 1", "1 ", "1.0", "1e3", "0x10", "four", "-", "--1"})
    EXPECT_EQ(parse_int(text), std::nullopt) << "'" << text << "'";
}

TEST(ParseIntTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(parse_int("2147483648"), std::nullopt);
  EXPECT_EQ(parse_int("-99999999999999999999"), std::nullopt);
}

TEST(NearestTest, FindsTheWordThatWasMeant) {
  const std::vector<std::string> keys = {"micro_batch", "global_batch", "lr", "iterations"};
  EXPECT_THAT(nearest("micro_bacth", keys), Optional(std::string("micro_batch")));
  EXPECT_THAT(nearest("global-batch", keys), Optional(std::string("global_batch")));
  EXPECT_THAT(nearest("iteration", keys), Optional(std::string("iterations")));
  EXPECT_THAT(nearest("lrr", keys), Optional(std::string("lr")));
}

TEST(NearestTest, IsSilentWhenNothingIsClose) {
  EXPECT_EQ(nearest("xyz", {"micro_batch", "lr"}), std::nullopt);
  EXPECT_EQ(nearest("tokenizer", {"lr", "seed"}), std::nullopt);
  EXPECT_EQ(nearest("lr", {}), std::nullopt);
  EXPECT_EQ(nearest("", {"tp", "seed"}), std::nullopt);
}

// Of several equally close words the first is chosen, so that messages are deterministic.
TEST(NearestTest, PrefersTheFirstOfEquals) {
  EXPECT_THAT(nearest("ap", {"tp", "cp", "dp"}), Optional(std::string("tp")));
}

TEST(CountedTest, TheNounAgreesWithTheNumber) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2, "microbatch"), "2 microbatches");
}

TEST(ChoiceAdviceTest, NamesTheChoiceThatWasMeant) {
  EXPECT_EQ(choice_advice("rowise", {"off", "rowwise"}), "did you mean 'rowwise'?");
  EXPECT_EQ(choice_advice("float16", {"bfloat16", "float32", "float64"}), "did you mean 'bfloat16'?");
}

TEST(ChoiceAdviceTest, ListsTheChoicesWhenAGuessWouldBeArbitrary) {
  EXPECT_EQ(choice_advice("true", {"off", "rowwise"}), "use off or rowwise");
  EXPECT_EQ(choice_advice("stage4", {"stage1", "stage2", "stage3"}), "use stage1, stage2 or stage3");
  EXPECT_EQ(choice_advice("gpu", {"auto", "cpu", "cuda"}), "use auto, cpu or cuda");
  EXPECT_EQ(choice_advice("b", {"a"}), "use a");
}

TEST(InQuotesTest, ShowsNamesWithoutTheirTricks) {
  EXPECT_EQ(in_quotes("weight"), "'weight'");
  EXPECT_EQ(in_quotes("a\x1b[2J\nb\x7f"), "'a\\x1b[2J b\\x7f'");
  EXPECT_EQ(in_quotes("\xc2\x9b"
                      "2J \xc3\xa9 \xff"),
            "'\\xc2\\x9b2J \xc3\xa9 \\xff'");
  EXPECT_EQ(in_quotes(std::string(300, 'x')), "'" + std::string(200, 'x') + "...' (300 letters)");
}

TEST(JsonErrorTest, HasThePlaceAndTheReason) {
  const auto error = [](const char* text) -> std::string {
    try {
      return nlohmann::json::parse(text).dump();
    } catch (const nlohmann::json::exception& e) {
      return json_error(e.what());
    }
  };
  EXPECT_EQ(error("{\"a\": 1,\n 2}"), "line 2, column 2: unexpected number literal; expected string literal");
  EXPECT_THAT(error("\"\\ud800\""), testing::StartsWith("line 1, column 8: invalid string: surrogate"));
  EXPECT_EQ(json_error("plain words"), "plain words");
}

TEST(FoldRanksTest, FoldsRuns) {
  EXPECT_EQ(fold_ranks({}), "");
  EXPECT_EQ(fold_ranks({5}), "5");
  EXPECT_EQ(fold_ranks({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(fold_ranks({0, 2, 4}), "0,2,4");
}

TEST(PlainNumber, HasNoExponent) {
  EXPECT_EQ(plain_number(51440.2), "51440");
  EXPECT_EQ(plain_number(2e9), "2000000000");
  EXPECT_EQ(plain_number(374.46), "374.5");
  EXPECT_EQ(plain_number(12), "12");
  EXPECT_EQ(plain_number(100), "100");
  EXPECT_EQ(plain_number(9.99996), "10");
  EXPECT_EQ(plain_number(-0.25), "-0.25");
  EXPECT_EQ(plain_number(0.0000058671), "0.000005867");
  EXPECT_EQ(plain_number(0), "0");
  EXPECT_EQ(plain_number(std::nan("")), "nan");
  EXPECT_EQ(plain_number(123.4, 2), "123");
}

}  // namespace
}  // namespace braid
