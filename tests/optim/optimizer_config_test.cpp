// Rejected configs, and the sizes of buckets.
#include "optim/optimizer_config.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> problems_of(const OptimizerConfig& config) {
  std::vector<std::string> lines;
  for (const Problem& problem : validate(config, "optimizer"))
    lines.push_back(problem.where + ": " + problem.what + "; " + problem.fix);
  return lines;
}

TEST(OptimizerConfig, AcceptsWhatMakesSense) {
  EXPECT_THAT(problems_of({}), IsEmpty());
  EXPECT_THAT(problems_of({.beta1 = 0, .beta2 = 0, .clip_grad = 0, .zero = false, .bucket_size = 0}), IsEmpty());
  EXPECT_THAT(problems_of({.overlap_grad_reduce = true, .overlap_param_gather = true, .bucket_count = 8}), IsEmpty());
  EXPECT_THAT(problems_of({.zero = false, .overlap_grad_reduce = true}), IsEmpty());
}

TEST(OptimizerConfig, NamesEveryValueThatIsOutOfRange) {
  EXPECT_THAT(
      problems_of({.beta1 = 1, .beta2 = -0.1, .eps = 0, .clip_grad = -1, .bucket_size = -5}),
      ElementsAre("optimizer.beta1: beta1=1 must be 0 or more and less than 1; use 0 or more and less than 1",
                  "optimizer.beta2: beta2=-0.1 must be 0 or more and less than 1; use 0 or more and less than 1",
                  "optimizer.eps: eps=0 must be more than 0; use more than 0",
                  "optimizer.clip_grad: clip_grad=-1 must be 0 or more; use 0 or more",
                  "optimizer.bucket_size: bucket_size=-5 must be 0 or more; use 0 or more"));
  EXPECT_THAT(problems_of({.bucket_count = 0}),
              ElementsAre("optimizer.bucket_count: bucket_count=0 must be 1 or more; use 1 or more"));
  EXPECT_EQ(problems_of({.beta1 = std::nan(""), .beta2 = std::nan(""), .eps = std::nan(""), .clip_grad = std::nan("")})
                .size(),
            4u);
}

TEST(OptimizerConfig, OneOfBucketSizeAndCount) {
  EXPECT_THAT(problems_of({.bucket_size = 100, .bucket_count = 8}),
              ElementsAre("optimizer.bucket_count: bucket_count=8 and bucket_size=100 both set the size of buckets; "
                          "give one of them"));
}

TEST(OptimizerConfig, GathersInTheBackgroundOnlyWithZeroAndOverlappedReduction) {
  EXPECT_THAT(
      problems_of({.zero = false, .overlap_param_gather = true}),
      ElementsAre("optimizer.overlap_param_gather: overlap_param_gather=true, but with zero=false no parameters "
                  "are gathered; use zero=true, or overlap_param_gather=false",
                  "optimizer.overlap_param_gather: overlap_param_gather=true needs overlap_grad_reduce=true; "
                  "use overlap_grad_reduce=true, or overlap_param_gather=false"));
}

TEST(OptimizerConfig, BucketElements) {
  EXPECT_EQ(bucket_elements({}, 1000, 8), 0) << "one bucket";
  EXPECT_EQ(bucket_elements({.overlap_grad_reduce = true}, 1000, 8), 40'000'000);
  EXPECT_EQ(bucket_elements({.overlap_grad_reduce = true}, 1000, 64), 64'000'000);
  EXPECT_EQ(bucket_elements({.bucket_size = 0}, 1000, 8), 0);
  EXPECT_EQ(bucket_elements({.bucket_size = 70}, 1000, 8), 70);
  EXPECT_EQ(bucket_elements({.bucket_count = 8}, 1000, 8), 125);
  EXPECT_EQ(bucket_elements({.bucket_count = 3}, 10'000'000'000, 8), 3'333'333'333);
  EXPECT_EQ(bucket_elements({.bucket_count = 2000}, 1000, 8), 1) << "a bucket for each parameter, not one for all";
}

}  // namespace
}  // namespace braid
