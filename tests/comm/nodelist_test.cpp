#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

TEST(Nodelist, WritesOutSlurmsSyntax) {
  EXPECT_THAT(expand_nodelist("login1"), ElementsAre("login1"));
  EXPECT_THAT(expand_nodelist("a,b-7"), ElementsAre("a", "b-7"));
  EXPECT_THAT(expand_nodelist("pool0-[0012-0015,0020]"),
              ElementsAre("pool0-0012", "pool0-0013", "pool0-0014", "pool0-0015", "pool0-0020"));
  EXPECT_THAT(expand_nodelist("n[8-11],m[1,3]x"), ElementsAre("n8", "n9", "n10", "n11", "m1x", "m3x"));
  EXPECT_THAT(expand_nodelist("rack[0-1]node[00-01]"),
              ElementsAre("rack0node00", "rack0node01", "rack1node00", "rack1node01"));
}

TEST(Nodelist, RefusesWhatIsNotAList) {
  for (const char* text : {"", "a[", "a]", "a[1-]", "a[2-1]", "a[1-2-3]", "a[x]", "a,,b", "a[[1]]", "a[0-99999999]",
                           "a[0-999]b[0-999]", "a[]"})
    EXPECT_THROW(expand_nodelist(text), ConfigError) << text;
}

TEST(TasksPerNode, WritesOutRepeats) {
  EXPECT_THAT(expand_tasks_per_node("8(x4),3"), ElementsAre(8, 8, 8, 8, 3));
  EXPECT_THAT(expand_tasks_per_node("2"), ElementsAre(2));
  for (const char* text : {"", "0", "8(x", "8(x0)", "8x4", "8(x99999999)", "a"})
    EXPECT_THROW(expand_tasks_per_node(text), ConfigError) << text;
}

}  // namespace
}  // namespace braid
