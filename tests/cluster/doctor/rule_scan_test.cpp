// The oracle is the table of rules, searched in its order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cluster/doctor/rules.h"

namespace braid {
namespace {

// How often rules are tried on a text.
std::uint64_t tries_on(const std::string& text) {
  RuleScan scan;
  scan.first_fitting(text);
  return scan.tries();
}

std::string repeated(std::string_view words, std::size_t times) {
  std::string text;
  while (times-- > 0) text += words;
  return text;
}

TEST(RuleScan, GivesTheFirstRuleOfTheTableThatFits) {
  RuleScan scan;
  const std::vector<Rule>& lines = rules().lines;
  for (const Rule& rule : lines) {
    std::string text = "a " + rule.anchor + " b ";
    for (const std::string& words : rule.also) text += words.substr(0, words.find('|'));
    const auto is_first = [&](const Rule& r) { return text.find(r.anchor) != std::string::npos && r.fits(text); };
    const auto first = std::find_if(lines.begin(), lines.end(), is_first);
    ASSERT_NE(first, lines.end()) << text;
    EXPECT_EQ(scan.first_fitting(text), &*first) << text;
  }
  EXPECT_EQ(scan.first_fitting("all is well"), nullptr);
}

// Each try searches the whole text, so tries for every occurrence would cost the square of its length.
TEST(RuleScan, TriesARuleOnceHoweverOftenItsAnchorIsThere) {
  for (const char* words :
       {"huggingface.co/x", "memory limit", "Run time ", "huggingface.co/x memory limit Run time "}) {
    ASSERT_GT(tries_on(words), 0u) << words;
    EXPECT_EQ(tries_on(repeated(words, 4096)), tries_on(words)) << words;
  }
  std::string all;
  for (const Rule& rule : rules().lines) all += rule.anchor + " ";
  EXPECT_LE(tries_on(repeated(all, 3)), rules().lines.size());
}

TEST(RuleScan, TriesARuleAgainOnTheNextText) {
  RuleScan scan;
  EXPECT_EQ(scan.first_fitting("huggingface.co/x"), nullptr);
  EXPECT_NE(scan.first_fitting("huggingface.co/x OSError"), nullptr);
}

// What is compiled in is parsed when it is first used, so a mistake in it ends every test of this program; this one
// checks that mistakes are found and located.
TEST(RulesFile, AMistakeIsFoundInItsLine) {
  EXPECT_GT(parse_rules(kRulesTxt, kCausesTxt).lines.size(), 1000u);
  struct Case {
    const char* rows;
    const char* message;
  };
  for (const Case& c : {Case{"[lines]\nno-such-kind \"some words\"", "'no-such-kind' is not a kind"},
                        {"[lines]\nnan-loss \"short\"", "'short' has fewer than 6 bytes"},
                        {"[lines]\nnan-loss \"no end", "its closing quote is missing"},
                        {"[lines]\nnan-loss \"a \\q word\"", "\\q is not one of"},
                        {"[lines]\nnan-loss \"some words\" & \"a\\|b\"", "only the first text"},
                        {"[words]\nlist \"a\\|b\"", "only patterns"},
                        {"[steps]\nstep \"step %q\"", "'step %q' has an unknown element"},
                        {"[lines]\nnan-loss", "a text in quotes is missing"},
                        {"[no such section]\nnan-loss \"some words\"", "there is no section 'no such section'"},
                        {"[kinds]\nodd-kind none", "a role is missing"},
                        {"[kinds]\nodd-kind cause no-cause", "'no-cause' is not a cause"}}) {
    const std::string text = std::string(kRulesTxt) + c.rows;
    const auto lines = 1 + std::count(text.begin(), text.end(), '\n');
    try {
      parse_rules(text, kCausesTxt);
      ADD_FAILURE() << c.rows;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.problems().at(0).where, "rules.txt:" + std::to_string(lines));
      EXPECT_THAT(error.problems().at(0).what, ::testing::HasSubstr(c.message));
    }
  }
  EXPECT_THROW(parse_rules(kRulesTxt, std::string(kCausesTxt) + "cure: none\n"), ConfigError);
}

}  // namespace
}  // namespace braid
