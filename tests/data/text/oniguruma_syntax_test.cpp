// The oracle test compares matches with Oniguruma's; this one shows what is rewritten.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/utf8.h"
#include "data/text/unicode.h"
#include "support/errors.h"

namespace braid {
namespace {

using testing::error_of;

std::vector<std::string> matches(const char* pattern, const std::string& text) {
  std::vector<std::string> found;
  for (const auto& [begin, end] : Regex(pattern).matches(text)) found.push_back(text.substr(begin, end - begin));
  return found;
}

// A kind for each set of characters that the pattern tells apart: others, a, b, c.
TEST(OnigurumaSyntax, PatternsAreWrittenForKindsOfCharacters) {
  EXPECT_EQ(from_oniguruma("a+(?!b)").pattern, R"(\x{1}+(?!\x{2}))");
  EXPECT_EQ(from_oniguruma("[ac]b").pattern, R"(\x{1}\x{2})");
  EXPECT_EQ(from_oniguruma("[a-c]?a").pattern, R"([\x{1}-\x{2}]?\x{1})");
  EXPECT_EQ(from_oniguruma("(ab){2}+c").pattern, R"((?:(?:\x{1}\x{2}){2})+\x{3})");  // not possessive there
  EXPECT_EQ(from_oniguruma(R"(\u0041\x{42})").pattern, R"(\x{1}\x{2})");
}

// Each literal is a kind of its own; 200 do not fit into one byte of UTF-8.
TEST(OnigurumaSyntax, ManyKindsOfCharacters) {
  std::string alternatives, text;
  for (std::uint32_t code = 0x4e00; code < 0x4e00 + 200; ++code) {
    append_utf8(text, code);
    text += "-a";
    if (!alternatives.empty()) alternatives += '|';
    append_utf8(alternatives, code);
  }
  EXPECT_EQ(matches((alternatives + "|a").c_str(), text).size(), 400u);
  EXPECT_EQ(matches((alternatives + "|-a").c_str(), text).at(399), "-a");
}

TEST(OnigurumaSyntax, ClassesAreOnigurumas) {
  EXPECT_EQ(matches(R"(\s)", "\u180e\u3000"), std::vector<std::string>{"\u3000"});
  EXPECT_EQ(matches(R"([^\S\n]+)", "a \u2003\nb\t"), (std::vector<std::string>{" \u2003", "\t"}));
  EXPECT_EQ(matches(R"(\w+)", "n\u0303-b"), (std::vector<std::string>{"n\u0303", "b"}));
  EXPECT_EQ(matches(R"(\h+)", "xyfaz"), std::vector<std::string>{"fa"});
  EXPECT_EQ(matches(R"(\p{Han}+)", "\u6f22\u3001\u5b57\u300d"), (std::vector<std::string>{"\u6f22", "\u5b57"}));
  EXPECT_EQ(matches(R"(\w+)", "x\u00b2-\u00bd"), (std::vector<std::string>{"x\u00b2", "\u00bd"}));
  EXPECT_EQ(matches(R"([\w]+)", "x\u00b2"), std::vector<std::string>{"x"});  // another set inside brackets
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab\u6f22c"), (std::vector<std::string>{"ab", "c"}));
}

TEST(OnigurumaSyntax, CaseIsOnigurumas) {
  EXPECT_EQ(matches("(?i:ss)", "SS \u00df s"), (std::vector<std::string>{"SS", "\u00df"}));
  EXPECT_EQ(matches("(?i:'s|k)", "'\u017f K \u212a"), (std::vector<std::string>{"'\u017f", "K", "\u212a"}));
  EXPECT_EQ(matches("x(?i)s|y", "xS Y"), std::vector<std::string>{"xS"});  // y belongs to the option's group
}

TEST(OnigurumaSyntax, EmptyMatchesAdvance) {
  EXPECT_EQ(matches("a*", "baac"), (std::vector<std::string>{"", "aa", ""}));
}

TEST(OnigurumaSyntax, UnknownPropertiesAreNamed) {
  EXPECT_THAT(error_of<DataError>([] { from_oniguruma(R"(a\p{Script=Han})"); }), ::testing::HasSubstr("'Script=Han'"));
}

TEST(OnigurumaSyntax, OtherSyntaxIsRefused) {
  for (const char* pattern : {"[]a]", "(?<n>a)", "(*FAIL)", R"(\bfoo)", R"(\K)", "a{2}?", "a{,3}", "[a", ")", "(",
                              R"(\p{Foo})", "[[:foo:]]", R"(\xe4)", R"([\d-z])", "^*", "(?i:s(?:s))"})
    EXPECT_THAT(error_of<DataError>([&] { from_oniguruma(pattern); }), ::testing::HasSubstr("not supported"))
        << pattern;
}

}  // namespace
}  // namespace braid
