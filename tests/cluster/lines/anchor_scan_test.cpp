// The oracle is std::string_view::find for every anchor at every place.
#include "cluster/lines/anchor_scan.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

std::vector<int> scanned(const AnchorScan& scan, std::string_view text, std::size_t anchors) {
  std::vector<int> counts(anchors);
  scan.each(text, [&](int anchor) { return ++counts[static_cast<std::size_t>(anchor)], true; });
  return counts;
}

std::vector<int> searched(const std::vector<std::string>& anchors, std::string_view text) {
  std::vector<int> counts(anchors.size());
  for (std::size_t i = 0; i < anchors.size(); ++i)
    for (std::size_t at = 0; (at = text.find(anchors[i], at)) != std::string_view::npos; ++at) ++counts[i];
  return counts;
}

TEST(AnchorScan, FindsWhatNaiveSearchFinds) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t length, int letters) {
    std::string text(length, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
    return text;
  };
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    const int letters = 2 + round % 3;
    std::vector<std::string> anchors;
    for (int i = 0; i < 1 + round % 20; ++i) anchors.push_back(word(6 + random() % 9, letters));
    const AnchorScan scan(anchors);
    std::string text = word(random() % 300, letters);
    if (round % 2) text += anchors[0] + anchors.back();
    const std::vector<int> expected = searched(anchors, text);
    ASSERT_EQ(scanned(scan, text, anchors.size()), expected) << text;
    for (const int count : expected) found += count;
  }
  EXPECT_GT(found, 500);
}

TEST(AnchorScan, SeesBothEndsOfATextAndAllBytes) {
  const AnchorScan scan({"begin!", "enden!", std::string("\xff\x00\xfe\x01\x80!", 6)});
  const auto count = [&](std::string_view text) {
    int hits = 0;
    scan.each(text, [&](int) { return ++hits, true; });
    return hits;
  };
  EXPECT_EQ(count("begin!"), 1);
  EXPECT_EQ(count("begin"), 0);
  EXPECT_EQ(count(""), 0);
  EXPECT_EQ(count("begin!xxxxenden!"), 2);
  EXPECT_EQ(count(std::string_view("ab\xff\x00\xfe\x01\x80!", 8)), 1);
}

TEST(AnchorScan, StopsWhenToldTo) {
  const AnchorScan scan({"begin!"});
  int hits = 0;
  scan.each("begin! begin!", [&](int) { return ++hits, false; });
  EXPECT_EQ(hits, 1);
}

}  // namespace
}  // namespace braid
