// Tokenizer files by hand: what their parts do, and how invalid files are refused. tests/oracles/tokenizer_test.py
// compares with the libraries that the files come from.
#include "data/text/tokenizer.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/text/small_tokenizer.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_codec;
using testing::small_tokenizer;
using Json = nlohmann::json;

Tokenizer small() { return {read_codec(small_tokenizer()), {}, "tokenizer.json"}; }

TEST(Tokenizer, MergesByRankAndFindsTheLongestAddedToken) {
  const Tokenizer tokenizer = small();
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(259));
  EXPECT_THAT(tokenizer.encode("hell"), ElementsAre(258));
  EXPECT_THAT(tokenizer.encode("hehe"), ElementsAre(256, 256));
  EXPECT_THAT(tokenizer.encode("<image><image>hello<image>"), ElementsAre(262, 259, 261));
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.vocab_size(), 263);
}

// tests/oracles/tokenizer_config_test.py compares with transformers.
TEST(Tokenizer, ATokenizerConfigAddsTokens) {
  const Json config = {{"added_tokens_decoder", {{"264", {{"content", "<b>"}}}, {"263", {{"content", "<a>"}}}}},
                       {"eos_token", "<e>"}};
  const JsonPlace place(config, "tokenizer_config.json");
  const Tokenizer tokenizer(read_hf_codec(small_tokenizer().dump(), "tokenizer.json", &place), {}, "");
  EXPECT_THAT(tokenizer.encode("<a>hello<b><e><s>"), ElementsAre(263, 259, 264, 265, 260));
  EXPECT_EQ(tokenizer.decode({263, 265}, /*skip_special=*/true), "<a>");
}

TEST(Tokenizer, TextSurvivesEncodingAndDecoding) {
  const Tokenizer tokenizer = small();
  const std::string text = "hello <s> W\u00f6rld\n \U0001f600";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<s>b"), /*skip_special=*/true), "ab");
  EXPECT_EQ(tokenizer.encode("a\xffz"), tokenizer.encode("a\ufffdz"));
  EXPECT_THAT(error_of<DataError>([&] { tokenizer.decode({5000}); }), HasSubstr("5000"));
}

// A queue merges long words, a scan short ones; both must follow the ranks.
TEST(Tokenizer, LongWordsAreMergedLikeShortOnes) {
  const Tokenizer tokenizer = small();
  std::string text;
  std::vector<int> expected;
  for (int i = 0; i < 1000; ++i) {
    text += "hellohe";
    expected.insert(expected.end(), {259, 256});
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
}

TEST(Tokenizer, ThreadsMayShareIt) {
  const Tokenizer tokenizer = small();
  const std::string text = "hello hehe hell 123 hello";
  const std::vector<int> expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) wrong[t] += tokenizer.encode(text) != expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// More words than the cache holds.
TEST(Tokenizer, ManyWordsDoNotMixUp) {
  const Tokenizer tokenizer = small();
  for (int i = 0; i < 70'000; ++i) {
    const std::string word = "w" + std::to_string(i);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
  }
}

TEST(Tokenizer, FindsTokensByTheirText) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.find("<image>"), 261);
  EXPECT_EQ(tokenizer.find("hello"), 259);
  EXPECT_EQ(tokenizer.find("<imag>"), std::nullopt);
}

TEST(Tokenizer, AFolderWithoutOneIsRefused) {
  EXPECT_THAT(error_of([] { load_tokenizer("/"); }), HasSubstr("tokenizer.json or tokenizer.model"));
  EXPECT_THAT(error_of([] { load_tokenizer("/no/such/file"); }),
              HasSubstr("cannot read '/no/such/file': No such file"));
}

struct BadFile {
  const char* where;  // a JSON pointer
  Json value;
  const char* message;
};

class BadFiles : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, AreRefusedWithThePlace) {
  Json json = small_tokenizer();
  EXPECT_EQ(error_of<DataError>([&] { read_codec(json); }), "no error");
  json[Json::json_pointer(GetParam().where)] = GetParam().value;
  EXPECT_THAT(error_of<DataError>([&] { read_codec(json); }), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizer, BadFiles,
    ::testing::Values(
        BadFile{"/model", 3, "tokenizer.json: model should be an object"},
        BadFile{"/model/type", "Unigram", "model.type is 'Unigram'; the only known model is BPE"},
        BadFile{"/model/dropout", 0.1, "model.dropout is not supported"},
        BadFile{"/model/vocab/he", "x", "model.vocab['he'] should be an integer"},
        BadFile{"/model/vocab/he", 3, "gives the id 3 to"}, BadFile{"/model/vocab/he", -1, "integer from 0"},
        BadFile{"/model/vocab/he", 2'000'000'000, "integer from 0"},
        BadFile{"/model/merges/1", "l x y", "model.merges[1] should be two tokens"},
        BadFile{"/model/merges/1", "l zz", "model.merges[1] names 'zz'"},
        BadFile{"/model/merges/1", "l h", "model.merges[1] names 'lh'"},
        BadFile{"/model/merges", "x", "model.merges should be a list"},
        BadFile{"/added_tokens/1/id", 260, "added_tokens[1].id is 260"},
        BadFile{"/added_tokens/1/content", "<s>", "added_tokens[1] repeats '<s>'"},
        BadFile{"/added_tokens/1/content", "", "should not be empty"},
        BadFile{"/added_tokens/0/lstrip", "yes", "added_tokens[0].lstrip should be true or false"},
        BadFile{"/pre_tokenizer", Json{{"type", "Magic"}}, "pre_tokenizer has type 'Magic'; known"},
        BadFile{"/pre_tokenizer", Json{{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}},
                "pre_tokenizer.pattern.Regex"},
        BadFile{"/pre_tokenizer", Json{{"type", "Split"}, {"pattern", {{"Regex", "\\p{Elvish}"}}}}, "Elvish"},
        BadFile{"/normalizer", Json{{"type", "Precompiled"}}, "normalizer has type 'Precompiled'"},
        BadFile{"/decoder", Json{{"type", "CTC"}}, "decoder has type 'CTC'"},
        BadFile{"/post_processor", Json{{"type", "BertProcessing"}}, "post_processor has type 'BertProcessing'"}));

TEST(Tokenizer, DeepNestingIsRefused) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(error_of<DataError>([&] { read_hf_codec(deep, "f"); }), HasSubstr("nested"));
  EXPECT_THAT(error_of<DataError>([&] { read_hf_codec("{\"model\"", "f"); }), HasSubstr("not JSON"));
}

// (a|aa)+[bc] needs exponentially many steps without a match; the other branch keeps the last character from being a
// literal that could be looked for first.
TEST(Tokenizer, PatternsThatBacktrackForEverEnd) {
  Json json = small_tokenizer();
  json["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(?:a|aa)+[bc]|b"}}}};
  const auto codec = read_codec(json);
  EXPECT_THAT(error_of<DataError>([&] { codec->encode(std::string(5000, 'a'), false); }),
              HasSubstr("cannot be applied"));
}

}  // namespace
}  // namespace braid
