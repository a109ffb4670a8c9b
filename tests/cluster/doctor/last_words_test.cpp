// Sentences of schedulers, clouds and container runtimes that no table knows, and lines that only speak of such ends.
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using testing::slug_of;

std::string cause_of_last_line(const std::string& line) {
  return slug_of(diagnosis_of_text("starting the run\nloading data\n" + line + "\n"));
}

TEST(LastWords, TellOfAnEndInAnyonesWords) {
  struct Case {
    const char* line;
    const char* cause;
  };
  for (const Case& c :
       {Case{"Job 123 exceeded its walltime and was terminated", "time-limit"},
        {"Job was terminated because it reached the maximum run time of 24 hours", "time-limit"},
        {"MOAB_INFO:  job exceeded wallclock limit", "time-limit"},
        {"[taskcluster:warn 2026-11-15T16:03:58.221Z] GCP Metadata Service says termination is imminent", "preempted"},
        {"[agent] Spot instance reclaimed, shutting down", "preempted"},
        {"Job cancelled by administrator", "cancelled"},
        {"[kubeflow] Job train terminated: deleted by user", "cancelled"},
        {"Job 12 memory usage 67.2GB exceeds requested 64GB, killing job", "host-oom"},
        {"Node n3 became unreachable; terminating the job", "node-failure"},
        {"Lost contact with node gpu7, marking it as failed and ending the job", "node-failure"},
        {"Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].", "not-launched"},
        {"Failed to pull image \"x/y:z\": rpc error: code = NotFound", "not-launched"},
        {"env: 'python3': No such file or directory", "not-launched"},
        {"thread '<unnamed>' panicked at src/lib.rs:10: called `Option::unwrap()` on a `None` value", "segfault"}})
    EXPECT_EQ(cause_of_last_line(c.line), c.cause) << c.line;
}

TEST(LastWords, OfWhatMayBeTellNothing) {
  for (const char* line :
       {"Setting time limit to 4 h; job will be killed when the time limit is reached",
        "preemption handler installed, will save on SIGTERM", "some pods were Evicted earlier but rescheduled",
        "{\"oom_kill\": 0, \"time_limit\": \"04:00:00\", \"spot\": true}", "FATAL:   0  ERROR: 0  WARN: 3",
        "  hang_limit_s: 300       # end the run when a rank makes no progress for this long",
        "loss guard: abort if loss is nan: False", "WARNING: no XLA devices found, falling back to CPU",
        "connection to the metrics server lost, retrying", "WARNING: connection to the tracker lost",
        "n1:123:456 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "[INFO] Epoch duration 12 s over 100 steps", "failed to import ttsfrd, use WeTextProcessing instead",
        "|            CUDA OOMs: 0            |", "a self-configuring method for image segmentation",
        "W0529 10:21:11.220000 3011 dynamic_rendezvous.py:1341] The node 'w-1' has failed to shutdown the rendezvous",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection "
        "refused).",
        "E0000 00:00:00.000000 1 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory "
        "for "
        "plugin cuDNN when one has already been registered"})
    EXPECT_EQ(cause_of_last_line(line), "unknown") << line;
}

TEST(LastWords, NameTheRankThatFailed) {
  const Diagnosis diagnosis = diagnosis_of_text(
      "start\nValueError: bad shape\n0.06s: flux-shell[0]: FATAL: task-exit: sh: task rank 3 on host n2 failed and "
      "exit-on-error is set\nflux-job: task(s) exited with exit code 1\n");
  EXPECT_EQ(slug_of(diagnosis), "python-error");
  EXPECT_EQ(diagnosis.first_rank, 3);
  EXPECT_FALSE(diagnosis_of_text("start\nValueError: bad shape\nlocal rank 3 failed\n").first_rank);
}

TEST(LastWords, SayWhyAJobWasCancelled) {
  EXPECT_EQ(cause_of_last_line("Job deleted at request of root@sched\nMOAB_INFO:  job exceeded wallclock limit"),
            "time-limit");
}

TEST(LastWords, ThatTrainingOutlivedTellNothing) {
  EXPECT_EQ(cause_of_last_line("the connection of worker 3 was lost\n iteration  10/ 100 | lm loss: 4.0 |\n"
                               " iteration  11/ 100 | lm loss: 4.0 |"),
            "unknown");
}

}  // namespace
}  // namespace braid
