#include <gtest/gtest.h>
#include "optim/parameter_parts.h"

namespace braid {
namespace {

std::vector<std::int64_t> starts(const BucketLayout& layout) {
  std::vector<std::int64_t> all;
  for (const BucketLayout::Slot& slot : layout.slots) all.push_back(slot.span.begin);
  return all;
}

const std::vector<std::int64_t> kSizes = {8, 8 * 12, 12, 12 * 8, 8};

TEST(BucketLayout, PlacesParametersAsMegatron) {
  const BucketLayout layout = lay_out_buckets(kSizes, 2, {});
  EXPECT_EQ(starts(layout), (std::vector<std::int64_t>{0, 64, 192, 256, 384}));
  EXPECT_EQ(layout.slots[0].parameter, 4u);
  EXPECT_EQ(layout.slots[4].parameter, 0u);
  ASSERT_EQ(layout.buckets.size(), 1u);
  EXPECT_EQ(layout.buckets[0].used_end, 392);
  EXPECT_EQ(layout.buckets[0].span, (Span{0, 512}));
  EXPECT_EQ(layout.size, 512);
}

TEST(BucketLayout, ClosesABucketOnceItIsFull) {
  const BucketLayout layout = lay_out_buckets(kSizes, 2, {.bucket_size = 100});
  ASSERT_EQ(layout.buckets.size(), 3u);  // 8 + 96 | 12 + 96 | 8
  EXPECT_EQ(starts(layout), (std::vector<std::int64_t>{0, 64, 256, 320, 512}));
  EXPECT_EQ(layout.buckets[0].span, (Span{0, 256}));  // 160 used
  EXPECT_EQ(layout.buckets[1].span, (Span{256, 512}));
  EXPECT_EQ(layout.buckets[2].span, (Span{512, 640}));
  EXPECT_EQ(layout.buckets[1].first_slot, 2u);
  EXPECT_EQ(layout.buckets[1].last_slot, 3u);
  EXPECT_EQ(layout.slots[4].bucket, 2u);
}

TEST(BucketLayout, PadsBucketsToWhatTheRanksDivide) {
  EXPECT_EQ(lay_out_buckets(kSizes, 3, {}).size, 768);  // lcm(3, 128) = 384
  EXPECT_EQ(lay_out_buckets(kSizes, 2, {.pad_for_bandwidth = true}).size, 1 << 16);
  EXPECT_EQ(lay_out_buckets(kSizes, 3, {.pad_for_bandwidth = true}).size, 3 << 16);
}

TEST(BucketLayout, GivesOwnersEqualParts) {
  const BucketLayout layout = lay_out_buckets(kSizes, 4, {.bucket_size = 100});
  EXPECT_EQ(owned_span(layout.buckets[1], 0, 4), (Span{256, 320}));
  EXPECT_EQ(owned_span(layout.buckets[1], 3, 4), (Span{448, 512}));
}

TEST(BucketLayout, OfNothingIsEmpty) {
  EXPECT_EQ(lay_out_buckets({}, 2, {}).size, 0);
  EXPECT_TRUE(lay_out_buckets({}, 2, {}).buckets.empty());
}

}  // namespace
}  // namespace braid
