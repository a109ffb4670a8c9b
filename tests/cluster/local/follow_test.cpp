// The state of a job, from scontrol, and its progress, from metrics and logs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/slurm/job.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(JobRecord, ReadsWhatScontrolShows) {
  const JobRecord job = parse_job(
      "JobId=12 JobName=tiny-vlm-train\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n"
      "   JobState=RUNNING Reason=None Dependency=(null)\n   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0\n"
      "   RunTime=00:03:12 TimeLimit=04:00:00 TimeMin=N/A\n   NodeList=n[1-4]\n   WorkDir=/work/my runs\n"
      "   StdErr=/work/my runs/logs/tiny_12.log\n   StdOut=/work/my runs/logs/tiny_12.log\n   Power=\n");
  EXPECT_EQ(job.id, "12");
  EXPECT_EQ(job.name, "tiny-vlm-train");
  EXPECT_TRUE(is_running(job));
  EXPECT_EQ(job.reason, "");
  EXPECT_EQ(job.restarts, 2);
  EXPECT_EQ(job.nodes, "n[1-4]");
  EXPECT_EQ(job.log, "/work/my runs/logs/tiny_12.log");
}

TEST(JobRecord, ASignalIsACodeToo) {
  const auto code = [](const char* state, const char* text) {
    return exit_code_of(JobRecord{.state = state, .exit_code = text});
  };
  EXPECT_EQ(code("FAILED", "3:0"), 3);
  EXPECT_EQ(code("FAILED", "0:9"), 137);
  EXPECT_EQ(code("TIMEOUT", "0:0"), std::nullopt);
  EXPECT_EQ(code("RUNNING", "0:0"), std::nullopt);
  EXPECT_EQ(code("FAILED", ""), std::nullopt);
}

TEST(LoggedProgress, NumbersThatAreNone) {
  EXPECT_FALSE(parse_iteration_line("iteration nan/ 100 | lm loss: 5.0 |"));
  EXPECT_FALSE(parse_iteration_line("iteration 1e300/ 100 | lm loss: 5.0 |"));
  EXPECT_EQ(parse_iteration_line("iteration 5/ 0 | lm loss: nan |")->iterations, std::nullopt);
}

TEST(LoggedProgress, ReadsTheLinesOfSeveralPrograms) {
  const auto megatron = parse_iteration_line(
      "3:  [2026-11-15 09:40:29.620204] iteration       10/     100 | consumed samples:           80 | elapsed time "
      "per "
      "iteration (ms): 639.6 | learning rate: 2.946396E-03 | global batch size:     8 | lm loss: 5.333568E+00 |");
  ASSERT_TRUE(megatron);
  EXPECT_EQ(megatron->iteration, 10);
  EXPECT_EQ(megatron->iterations, 100);
  EXPECT_EQ(megatron->loss, 5.333568);
  EXPECT_EQ(megatron->iteration_ms, 639.6);
  const auto bridge = parse_iteration_line(
      "Training epoch 0, iteration 3/99 | lr: 3e-06 | global_batch_size: 8 | reduced_train_loss: 11.03 | "
      "train_step_timing in s: 4.25");
  ASSERT_TRUE(bridge);
  EXPECT_EQ(bridge->iteration, 3);
  EXPECT_EQ(bridge->iterations, 99);
  EXPECT_EQ(bridge->loss, 11.03);
  EXPECT_EQ(bridge->iteration_ms, 4250);
  EXPECT_FALSE(parse_iteration_line("saving checkpoint at iteration 10 to /work"));
}

TEST(LoggedProgress, MetricsAreNewerThanTheLogAndKeepItsLength) {
  const testing::TemporaryFolder folder;
  const std::string log = folder.write("run_12.log", "iteration 10/ 100 | lm loss: 5.0 |\n");
  EXPECT_EQ(to_text(*read_progress(log)), "iteration 10 of 100 (10.0 %), lm loss 5.0000");
  folder.write("run_12.jsonl",
               "{\"iteration\":11,\"lm_loss\":4.5,\"iteration_ms\":500}\n{\"iteration\":12,\"lm_loss\":4.25,"
               "\"iteration_ms\":1500}\n{\"iterat");
  EXPECT_EQ(to_text(*read_progress(log)),
            "iteration 12 of 100 (12.0 %), lm loss 4.2500, 1000 ms per iteration, 0:01:28 left");
}

TEST(LoggedProgress, FilesWithoutIterationsHaveNoProgress) {
  const testing::TemporaryFolder folder;
  EXPECT_FALSE(read_progress(folder.path() + "/missing.log"));
  EXPECT_FALSE(read_progress(folder.write("a.log", "")));
  EXPECT_FALSE(read_progress(folder.write("b.log", std::string("\0\xff[]{}\n\n", 8))));
}

}  // namespace
}  // namespace braid
