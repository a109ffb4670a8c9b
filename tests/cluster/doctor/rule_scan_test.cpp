// The oracle is the table of rules, searched in its order.
#include "cluster/doctor/events/rule_scan.h"

#include <gtest/gtest.h>

#include <algorithm>

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
  for (const Rule& rule : rules()) {
    const std::string text = "a " + std::string(rule.anchor) + " b " + (rule.also ? rule.also : "");
    const auto is_first = [&](const Rule& r) { return text.find(r.anchor) != std::string::npos && fits(r, text); };
    const auto first = std::find_if(rules().begin(), rules().end(), is_first);
    ASSERT_NE(first, rules().end()) << text;
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
  for (const Rule& rule : rules()) all += std::string(rule.anchor) + " ";
  EXPECT_LE(tries_on(repeated(all, 3)), rules().size());
}

TEST(RuleScan, TriesARuleAgainOnTheNextText) {
  RuleScan scan;
  EXPECT_EQ(scan.first_fitting("huggingface.co/x"), nullptr);
  EXPECT_NE(scan.first_fitting("huggingface.co/x OSError"), nullptr);
}

}  // namespace
}  // namespace braid
