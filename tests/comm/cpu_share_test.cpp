#include "comm/cpu_share.h"
#include <gmock/gmock.h>
#include <sched.h>

namespace braid {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;

std::vector<int> cpus(int count, int first = 0) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST(CpuShare, RanksWithTheSameCpusDivideThem) {
  EXPECT_THAT(threads_of_ranks({{"a", cpus(2)}, {"a", cpus(2)}}), ElementsAre(1, 1));
  EXPECT_THAT(threads_of_ranks({{"a", cpus(64)}}), ElementsAre(64));
  for (int ranks = 1; ranks <= 64; ++ranks)
    EXPECT_THAT(threads_of_ranks(std::vector<CpuShare>(static_cast<std::size_t>(ranks), {"a", cpus(3 * ranks + 1)})),
                Each(ranks == 1 ? 4 : 3))
        << ranks;
}

TEST(CpuShare, RanksOnTheirOwnCpusUseAllOfThem) {
  EXPECT_THAT(threads_of_ranks({{"a", cpus(8)}, {"a", cpus(8, 8)}, {"a", cpus(4, 16)}}), ElementsAre(8, 8, 4));
}

TEST(CpuShare, OverlappingSetsAreNotUsedTwice) {
  // The second rank has two CPUs for itself and shares four.
  EXPECT_THAT(threads_of_ranks({{"a", cpus(4)}, {"a", cpus(6)}}), ElementsAre(2, 4));
}

TEST(CpuShare, HostsDoNotShare) {
  EXPECT_THAT(threads_of_ranks({{"a", cpus(4)}, {"b", cpus(4)}, {"a", cpus(4)}, {"c", cpus(1)}}),
              ElementsAre(2, 4, 2, 1));
}

TEST(CpuShare, ThereIsAlwaysOneThread) {
  EXPECT_THAT(threads_of_ranks({{"a", cpus(1)}, {"a", cpus(1)}, {"a", {}}}), ElementsAre(1, 1, 1));
}

TEST(CpuShare, AQuotaIsDividedAmongTheRanksOfItsGroup) {
  const CpuShare limited = {.host = "a", .cpus = cpus(64), .quota = 6, .quota_group = "job"};
  EXPECT_THAT(threads_of_ranks({limited, limited, limited}), ElementsAre(2, 2, 2));
  CpuShare other = limited;
  other.quota_group = "another";
  EXPECT_THAT(threads_of_ranks({limited, other}), ElementsAre(6, 6));
  other.host = "b";
  other.quota_group = "job";
  EXPECT_THAT(threads_of_ranks({limited, other}), ElementsAre(6, 6));
}

TEST(CpuShare, ThisProcessKnowsItsAffinityWhichTextKeeps) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const CpuShare all = cpu_share_of_this_process();
  EXPECT_EQ(all.cpus.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  EXPECT_FALSE(all.host.empty());
  std::thread([&] {  // the affinity is a thread's
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(all.cpus.back(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_THAT(cpu_share_of_this_process().cpus, ElementsAre(all.cpus.back()));
  })
      .join();
  const CpuShare sent = {.host = "a", .cpus = {0, 7}, .quota = 1.5, .quota_group = "cgroup:[1]/\"x"};
  const CpuShare received = parse_cpu_share(to_text(sent));
  EXPECT_EQ(received.host, sent.host);
  EXPECT_THAT(received.cpus, ElementsAreArray(sent.cpus));
  EXPECT_EQ(received.quota, sent.quota);
  EXPECT_EQ(received.quota_group, sent.quota_group);
}

}  // namespace
}  // namespace braid
