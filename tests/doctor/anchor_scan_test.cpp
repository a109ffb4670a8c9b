// The oracle is std::string_view::find for every anchor at every place.
#include "doctor/anchor_scan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace braid {
namespace {

using Hits = std::set<std::pair<std::size_t, int>>;

Hits scanned(const AnchorScan& scan, std::string_view text) {
  Hits hits;
  for (auto hit = scan.find(text, 0); hit.anchor >= 0; hit = scan.find(text, hit.begin, hit.anchor))
    hits.emplace(hit.begin, hit.anchor);
  return hits;
}

Hits searched(const std::vector<std::string>& anchors, std::string_view text) {
  Hits hits;
  for (std::size_t i = 0; i < anchors.size(); ++i)
    for (std::size_t at = 0; (at = text.find(anchors[i], at)) != std::string_view::npos; ++at)
      hits.emplace(at, static_cast<int>(i));
  return hits;
}

TEST(AnchorScan, FindsWhatNaiveSearchFinds) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t length, int letters) {
    std::string text(length, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
    return text;
  };
  std::size_t found = 0;
  for (int round = 0; round < 300; ++round) {
    const int letters = 2 + round % 3;
    std::vector<std::string> anchors;
    for (int i = 0; i < 1 + round % 20; ++i) anchors.push_back(word(5 + random() % 4, letters));
    const AnchorScan scan(anchors);
    const std::string text = word(random() % 300, letters);
    const Hits expected = searched(anchors, text);
    ASSERT_EQ(scanned(scan, text), expected) << text;
    found += expected.size();
  }
  EXPECT_GT(found, 1000u);
}

TEST(AnchorScan, SeesBothEndsOfATextAndAllBytes) {
  const AnchorScan scan({"begin", "enden", std::string("\xff\x00\xfe\x01\x80", 5)});
  EXPECT_EQ(scan.find("begin", 0).anchor, 0);
  EXPECT_EQ(scan.find("begi", 0).anchor, -1);
  EXPECT_EQ(scan.find("", 0).anchor, -1);
  EXPECT_EQ(scan.find("xxxxenden", 0).begin, 4u);
  EXPECT_EQ(scan.find(std::string("ab\xff\x00\xfe\x01\x80", 7), 0).anchor, 2);
  EXPECT_EQ(scan.find("begin", 1).anchor, -1);
}

}  // namespace
}  // namespace braid
