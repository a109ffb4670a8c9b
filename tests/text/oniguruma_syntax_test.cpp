// The oracle test compares matches with Oniguruma's; this one shows what is rewritten.
#include "text/oniguruma_syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "text/regex.h"

namespace braid {
namespace {

using testing::error_of;

std::vector<std::string> matches(const char* pattern, const std::string& text) {
  const Regex regex(pattern);
  RegexScan scan(regex);
  scan.start(text);
  std::vector<std::string> found;
  while (const auto match = scan.next()) found.push_back(text.substr(match->begin, match->end - match->begin));
  return found;
}

TEST(OnigurumaSyntax, OnlyWhatDiffersIsRewritten) {
  const char* same = R"((?i:'s|'t)|[^\r\n\p{L}]?+\p{L}++|\p{N}{1,3}|a*?(?!b)(?<=c)$)";
  EXPECT_EQ(from_oniguruma(same), same);
  EXPECT_EQ(from_oniguruma("(ab){2}+c"), "(?:(ab){2})+c");  // not possessive there
  EXPECT_EQ(from_oniguruma(R"(\u0041\x{42})"), R"(\x{0041}\x{42})");
}

TEST(OnigurumaSyntax, ClassesAreOnigurumas) {
  EXPECT_EQ(matches(R"(\s)", "\u180e\u3000"), std::vector<std::string>{"\u3000"});
  EXPECT_EQ(matches(R"([^\S\n]+)", "a \u2003\nb\t"), (std::vector<std::string>{" \u2003", "\t"}));
  EXPECT_EQ(matches(R"(\w+)", "n\u0303-b"), (std::vector<std::string>{"n\u0303", "b"}));
  EXPECT_EQ(matches(R"(\h+)", "xyfaz"), std::vector<std::string>{"fa"});
}

TEST(OnigurumaSyntax, EmptyMatchesAdvance) {
  EXPECT_EQ(matches("a*", "baac"), (std::vector<std::string>{"", "aa", ""}));
}

TEST(OnigurumaSyntax, OtherSyntaxIsRefused) {
  for (const char* pattern :
       {"[a[b]]", "[a&&b]", "[]a]", "(?m:a)", "(?<n>a)", "(*FAIL)", R"(\bfoo)", R"(\K)", "a{2}?", "a{,3}", "[a", ")"})
    EXPECT_THAT(error_of<DataError>([&] { from_oniguruma(pattern); }), ::testing::HasSubstr("not supported"))
        << pattern;
}

}  // namespace
}  // namespace braid
