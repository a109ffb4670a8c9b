#include <gmock/gmock.h>
#include "cluster/local/local_launcher.h"

namespace braid {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

TEST(HostCapacity, AFewRanksPerCoreAndAFewAnywhere) {
  EXPECT_THAT(oversubscription_problems(16, {.cores = 1}), IsEmpty());
  EXPECT_THAT(oversubscription_problems(17, {.cores = 4}), SizeIs(1));
  EXPECT_THAT(oversubscription_problems(256, {.cores = 64}), IsEmpty());
  const auto problems = oversubscription_problems(257, {.cores = 64});
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].what, HasSubstr("257 ranks on 64 cores"));
  EXPECT_THAT(problems[0].fix, HasSubstr("at most 256 here, or start them anyway with --oversubscribe"));
}

TEST(HostCapacity, AllRanksTogetherMustFitTheMemory) {
  const HostCapacity room = {.cores = 8, .memory_bytes = 64 * kGiB};
  EXPECT_THAT(memory_problems({32 * kGiB, 32 * kGiB}, room), IsEmpty());
  EXPECT_THAT(memory_problems({}, room), IsEmpty());
  EXPECT_THAT(memory_problems({999 * kGiB}, {.cores = 8, .memory_bytes = 0}), IsEmpty());  // unknown
  const auto problems = memory_problems({32 * kGiB, 40 * kGiB}, room);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].what, HasSubstr("2 ranks need at least 72.00 GiB"));
  EXPECT_THAT(problems[0].what, HasSubstr("the largest 40.00 GiB), but this host has 64.00 GiB"));
  EXPECT_THAT(memory_problems({80 * kGiB}, room).at(0).what, HasSubstr("1 rank needs at least 80.00 GiB"));
}

TEST(HostCapacity, OfThisHostIsKnown) {
  const HostCapacity room = host_capacity();
  EXPECT_GE(room.cores, 1);
  EXPECT_GT(room.memory_bytes, std::int64_t{64} << 20);
}

}  // namespace
}  // namespace braid
