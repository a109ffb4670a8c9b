#include "plan/cluster_config.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

using std::chrono::seconds;

TEST(ClusterConfig, WallTimesAreReadAsSlurmReadsThem) {
  EXPECT_EQ(parse_wall_time("30"), seconds(30 * 60));
  EXPECT_EQ(parse_wall_time("30:15"), seconds(30 * 60 + 15));
  EXPECT_EQ(parse_wall_time("04:00:00"), seconds(4 * 3600));
  EXPECT_EQ(parse_wall_time("2-12"), seconds((48 + 12) * 3600));
  EXPECT_EQ(parse_wall_time("2-12:30"), seconds((48 + 12) * 3600 + 30 * 60));
  EXPECT_EQ(parse_wall_time("unlimited"), seconds::max());
  EXPECT_EQ(parse_wall_time("2-12:30:05"), seconds((48 + 12) * 3600 + 30 * 60 + 5));
}

TEST(ClusterConfig, NoTimeIsNone) {
  for (const char* text :
       {"", "0", "00:00:00", "4h", "4:", ":30", "-4", "1:2:3:4", "1-2-3", "1-", "+5", "4 ", "9999999999"})
    EXPECT_EQ(parse_wall_time(text), std::nullopt) << text;
}

TEST(ClusterConfig, ProblemsNameTheirKeys) {
  const auto problems = validate(ClusterConfig{.gpus_per_node = 0, .time = "soon"});
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].where, "cluster.gpus_per_node");
  EXPECT_EQ(problems[1].where, "cluster.time");
}

}  // namespace
}  // namespace braid
