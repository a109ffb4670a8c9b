#include <gtest/gtest.h>
#include "cluster/doctor/line.h"
#include "cluster/doctor/notes.h"

namespace braid {
namespace {

TEST(LineMarks, KnowTheWritersOfLines) {
  struct Case {
    const char* line;
    int rank;
    const char* body;
  };
  for (const Case& c :
       {Case{"[5] text", 5, "text"}, Case{"5: text", 5, "text"}, Case{" 5:   indented", 5, "  indented"},
        Case{"[rank11]: text", 11, "text"}, Case{"[rank3]:   File \"x\"", 3, "  File \"x\""},
        Case{"[Rank 7] text", 7, "text"}, Case{"[default2]:[rank10]: text", 10, "text"},
        Case{"4: [rank4]:[E1115 10:31:04.4 P.cpp:685] text", 4, "text"}, Case{"[1,6]<stderr>: text", 6, "text"},
        Case{"job-x/0 [default1]:[rank9]: text", 9, "text"}, Case{"[5]: text", 5, "text"},
        Case{"Rank[3] text", 3, "text"}, Case{"2026-11-15T09:40:29.5Z stderr F [rank3]: text", 3, "text"},
        Case{"2026-11-15T09:40:29Z: [1,6]<stderr>: text", 6, "text"}}) {
    const LineMarks marks = marks_of(c.line);
    ASSERT_TRUE(marks.rank) << c.line;
    EXPECT_EQ(*marks.rank, c.rank) << c.line;
    EXPECT_EQ(marks.body, c.body) << c.line;
  }
  EXPECT_EQ(marks_of("[default2]: text").local_rank, 2);
  for (const char* line :
       {"text", "[0]:", "5 apples", "[abc] text", "12:30 is a time", "[1234567890] text", "", "[", "[rank]", "[5]"})
    EXPECT_FALSE(marks_of(line).rank) << line;
}

TEST(LineMarks, KnowTimes) {
  const double expected = 86400.0 * (305 + 14) + 9 * 3600 + 40 * 60 + 29;
  for (const char* line :
       {" [2026-11-15 09:40:29.620204] iteration 1", "2026-11-15T09:40:29 text", "2026-11-15 09:40:29,123 INFO text",
        "[E1115 09:40:29.123456789 ProcessGroupNCCL.cpp:607] text", "W1115 09:40:29.123000 4242 torch/run.py:12] text",
        "[rank3]:[E1115 09:40:29.1 P.cpp:1] text"}) {
    const LineMarks marks = marks_of(line);
    ASSERT_TRUE(marks.time) << line;
    EXPECT_NEAR(*marks.time, expected, 0.7) << line;
  }
  EXPECT_TRUE(marks_of("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] text").time);
  EXPECT_NEAR(*time_inside("*** JOB 1 ON n1 CANCELLED AT 2026-11-15T09:40:29 ***"), expected, 0.1);
  EXPECT_FALSE(marks_of("2026-13-45 09:40:29 text").time);
  EXPECT_EQ(marks_of("2026-11-15 09:40:29,123 text").body, " text");
  EXPECT_EQ(marks_of("1115 09:40:29").body, "");
  EXPECT_EQ(marks_of("115 09:40:29.5Z text").body, " text");
  // New Year's night
  EXPECT_NEAR(seconds_between(*time_at("2026-12-31 23:59:59"), *time_at("2027-01-01 00:00:01")), 2, 0.01);
}

TEST(LineMarks, KnowRanksInsideMessages) {
  EXPECT_EQ(rank_inside("x [Rank 5] Watchdog"), 5);
  EXPECT_EQ(rank_inside("[PG ID 0 PG GUID 0(default_pg) Rank 12] Exception"), 12);
  EXPECT_EQ(rank_inside("Epoch 1: 5%[rank2]: text"), 2);
  EXPECT_FALSE(rank_inside("Rank 5 is fine"));
  EXPECT_FALSE(rank_inside("frank[3]"));
}

TEST(LineMarks, KnowRankFiles) {
  EXPECT_EQ(rank_of_path("logs/rank_3.log"), 3);
  EXPECT_EQ(rank_of_path("logs/job-rank12.txt"), 12);
  EXPECT_EQ(rank_of_path("x/attempt_0/7/stderr.log"), 7);
  EXPECT_EQ(rank_of_path("x/5.log"), 5);
  EXPECT_EQ(rank_of_path("logs/run_task2.err"), 2);
  for (const char* path : {"slurm-1234.out", "train_nproc8.log", "multitask2.log", "crank3.log", "logs/proc_4.txt"})
    EXPECT_FALSE(rank_of_path(path)) << path;
}

TEST(LineMarks, UnfoldRanks) {
  EXPECT_EQ(unfold_ranks("0-2,4"), (std::vector{0, 1, 2, 4}));
  EXPECT_TRUE(unfold_ranks("a").empty());
  EXPECT_EQ(unfold_ranks("0-999999", 10).size(), 10u);
}

TEST(LauncherLines, AreParsed) {
  ProcessEnds ends;
  const auto task = ends.feed("srun: error: n[1-2]: tasks 0-2,4: Exited with exit code 143");
  ASSERT_TRUE(task);
  EXPECT_EQ(task->ranks, (std::vector{0, 1, 2, 4}));
  EXPECT_EQ(task->host, "n[1-2]");
  EXPECT_EQ(task->code, 143);
  EXPECT_EQ(ends.feed("srun: error: n3: task 5: Killed")->code, -9);
  EXPECT_FALSE(ends.feed("srun: error: task 5 is unhappy"));
  const auto cause = parse_root_cause(
      "[1] braid: root cause: rank 5 (host a12, language[tp=1 cp=0]) failed in iteration 7 > x: out of memory");
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 5);
  EXPECT_EQ(cause->host, "a12");
  EXPECT_EQ(cause->operation, "iteration 7 > x");
  EXPECT_EQ(cause->reason, "out of memory");
  EXPECT_EQ(host_in("a12:4242:4300 [3] NCCL WARN x"), "a12");
  EXPECT_EQ(host_in("slurmstepd: error: *** JOB 7 ON pool0-0012 CANCELLED AT x"), "pool0-0012");
}

}  // namespace
}  // namespace braid
